"""Bring metafiles and tables of the configs up to date.

Lists every config of the model folders in its metafile.yml and in the table
of its README.md, with the parameters counted anew. Scores are written by hand
in metafile.yml, as ``Results`` with their ``Source``, and kept; so are the
collections. Run it after a config is added, renamed or changed.
"""
import argparse
import re
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

COLLECTIONS = {
    'csan': 'CSaN',
    'pola': 'Pola',
    'polaformer_pp': 'PolaFormer++',
    'baseline': {
        'mmcsan.SwinTransformer': 'Swin Transformer baseline',
        'mmcsan.VisionTransformer': 'Vision Transformer baseline',
        'mmcsan.Hiera': 'Hiera baseline',
        'mmcsan.PyramidVisionTransformer': 'PVT baseline',
    },
}
"""Of each folder the collection, or that of each backbone."""

METHODS = {
    None: 'classifier',
    'retinanet': 'RetinaNet',
    'mask-rcnn': 'Mask R-CNN',
    'cascade-mask-rcnn': 'Cascade Mask R-CNN',
    'mask2former': 'Mask2Former',
    'dino-4scale': 'DINO, 4 scales',
    'semantic-fpn': 'Semantic FPN',
    'upernet': 'UPerNet',
}
DATA = {'in1k': 'ImageNet-1k', 'coco': 'COCO', 'ade20k-512x512': 'ADE20K'}
METRICS = {'Top 1 Accuracy': 'top-1'}
"""Names of metrics in tables, where they are other ones."""

STEM = re.compile(r'(?P<backbone>[\w-]+?)(_(?P<method>[a-z0-9-]+))?_\d+xb\d+-'
                  r'(?P<schedule>[\w-]+)_(?P<data>[\w-]+)')
BEGIN = '<!-- models: tools/dev/make_metafiles.py writes from here -->'
END = '<!-- models: to here -->'
HEAD = [
    '| method | backbone | pretraining | schedule | parameters (M) | '
    'published | config |', '|---|---|---|---|---|---|---|'
]


def count_parameters(path: Path) -> int:
    """Parameters of the model of a config, without allocating any.

    Args:
        path (Path): The config.

    Returns:
        int: Their number, heads included.
    """
    import torch
    from mmengine.config import Config
    from mmengine.registry import MODELS

    import mmcsan  # noqa: F401  # before mmdet
    cfg = Config.fromfile(path)
    with MODELS.switch_scope_and_registry(
            cfg.default_scope) as registry, torch.device('meta'):
        model = registry.build(cfg.model)
    return sum(p.numel() for p in model.parameters())


def describe(path: Path, count: Callable[[Path], int]) -> dict:
    """What metafile and table say of a config, but for scores.

    Args:
        path (Path): The config.
        count (callable): Counts the parameters of its model.

    Returns:
        dict: Name, folder, method, backbone, pretraining, schedule, data,
        parameters and the type of the backbone.

    Raises:
        SystemExit: If its name is not one of the naming scheme.
    """
    from mmengine.config import Config
    match = STEM.fullmatch(path.stem)
    if (not match or match['method'] not in METHODS
            or match['data'] not in DATA):
        raise SystemExit(
            f'error: {path.name} is not called BACKBONE[_METHOD]_GxbN-'
            f'SCHEDULE_DATA, with a method of {sorted(filter(None, METHODS))} '
            f'and data of {sorted(DATA)}')
    backbone = Config.fromfile(path).model.backbone
    init = backbone.get('init_cfg')
    pretraining = ''
    if init:
        own = (path.parent.name == 'baseline'
               or Path(init.checkpoint).name.startswith(match['backbone']))
        pretraining = 'ImageNet-1k' if own else 'ImageNet-1k, plain weights'
    return dict(
        match.groupdict(),
        name=path.stem,
        folder=path.parent.name,
        type=backbone.type,
        pretraining=pretraining,
        parameters=count(path))


def models_of(folder: str, count: Callable[[Path], int]) -> List[dict]:
    """The models of a folder, by method, backbone and size.

    Args:
        folder (str): Its name below configs.
        count (callable): Counts the parameters of the model of a config.

    Returns:
        list[dict]: See :func:`describe`.
    """
    models = [
        describe(path, count)
        for path in (ROOT / 'configs' / folder).glob('*.py')
    ]
    methods = list(METHODS)
    return sorted(
        models,
        key=lambda m: (methods.index(m['method']), m['schedule'], m['type'],
                       m['parameters'], m['name']))


def metafile(models: List[dict], text: str) -> str:
    """A metafile with these models.

    Args:
        models (list[dict]): See :func:`describe`.
        text (str): The metafile as it is; collections and results are kept.

    Returns:
        str: As it should be.

    Raises:
        SystemExit: If a collection is missing.
    """
    meta = yaml.safe_load(text)
    known = {c['Name'] for c in meta['Collections']}
    results = results_of(text)
    entries = []
    for model in models:
        collection = COLLECTIONS[model['folder']]
        if isinstance(collection, dict):
            collection = collection[model['type']]
        if collection not in known:
            raise SystemExit(f'error: the metafile of {model["folder"]} has '
                             f'no collection {collection!r}')
        entries.append({
            'Name': model['name'],
            'In Collection': collection,
            'Config': f'configs/{model["folder"]}/{model["name"]}.py',
            'Metadata': {
                'Training Data': DATA[model['data']],
                'Parameters': model['parameters'],
            },
            'Results': results.get(model['name'], []),
        })
    return yaml.safe_dump(
        dict(Collections=meta['Collections'], Models=entries),
        sort_keys=False,
        allow_unicode=True,
        width=1000)


def results_of(text: str) -> Dict[str, list]:
    """The scores that a metafile holds, by the names of its models.

    Args:
        text (str): The metafile.

    Returns:
        dict: Lists of results.
    """
    models = yaml.safe_load(text).get('Models') or []
    return {model['Name']: model.get('Results') or [] for model in models}


def published(results: List[dict]) -> str:
    """What a table says of published scores.

    Args:
        results (list[dict]): Of the metafile.

    Returns:
        str: Scores and their sources; nothing where nothing is known.
    """
    cells = []
    for result in results:
        scores = ', '.join(f'{METRICS.get(name, name)} {value}'
                           for name, value in result['Metrics'].items())
        cells.append(f'{scores} ({result["Source"]})')
    return '; '.join(cells)


def table(models: List[dict], results: Dict[str, list]) -> str:
    """The table of a README.

    Args:
        models (list[dict]): See :func:`describe`.
        results (dict): See :func:`results_of`.

    Returns:
        str: In Markdown, between its marks.
    """
    rows = []
    for model in models:
        cells = [
            METHODS[model['method']], model['backbone'],
            model['pretraining'], model['schedule'],
            f'{model["parameters"] / 1e6:.2f}',
            published(results.get(model['name'], [])),
            f'[config]({model["name"]}.py)'
        ]
        rows.append(('| ' + ' | '.join(cells) + ' |').replace('|  |', '| |'))
    return '\n'.join([BEGIN, '', *HEAD, *rows, '', END])


def with_table(text: str, new: str, path: Path) -> str:
    """A README with its table replaced.

    Args:
        text (str): The README.
        new (str): See :func:`table`.
        path (Path): Where it is, for the error.

    Returns:
        str: The README.

    Raises:
        SystemExit: If it has no marks.
    """
    start, end = text.find(BEGIN), text.find(END)
    if not 0 <= start < end:
        raise SystemExit(f'error: {path} lacks the lines\n{BEGIN}\n{END}')
    return text[:start] + new + text[end + len(END):]


def update(write: bool = True,
           count: Optional[Callable[[Path], int]] = None) -> List[Path]:
    """Bring every metafile and table up to date.

    Args:
        write (bool): Whether to write what is stale. Defaults to True.
        count (callable, optional): Counts the parameters of the model of a
            config. Defaults to :func:`count_parameters`.

    Returns:
        list[Path]: What was stale, from the root of the clone.
    """
    wanted = {
        ROOT / 'model-index.yml': 'Import:\n' + ''.join(
            f'  - configs/{folder}/metafile.yml\n' for folder in COLLECTIONS)
    }
    for folder in COLLECTIONS:
        models = models_of(folder, count or count_parameters)
        meta = ROOT / 'configs' / folder / 'metafile.yml'
        readme = meta.with_name('README.md')
        text = meta.read_text('utf-8')
        wanted[meta] = metafile(models, text)
        wanted[readme] = with_table(
            readme.read_text('utf-8'), table(models, results_of(text)),
            readme)
    stale = [p for p, text in wanted.items() if p.read_text('utf-8') != text]
    for path in stale if write else ():
        path.write_text(wanted[path], 'utf-8')
    return [path.relative_to(ROOT) for path in stale]


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--check',
        action='store_true',
        help='write nothing; fail if anything is stale')
    args = parser.parse_args()
    stale = update(write=not args.check)
    for path in stale:
        print(f'{"stale" if args.check else "written"}: {path}')
    if args.check and stale:
        raise SystemExit(1)


if __name__ == '__main__':
    main()
