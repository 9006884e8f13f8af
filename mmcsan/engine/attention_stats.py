"""How attentions develop in training, as a few numbers for each."""
import contextlib
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmcsan.registry import HOOKS
from mmcsan.visualization import AttentionRecord, record_attention

PREFIX = 'attention'
"""What scalars begin with. Not 'train', which the log's lines would list."""

Curves = Dict[str, Dict[str, List[float]]]

_STEPS = f'{PREFIX}/iteration'

_SPREAD = ('temperature', 'amplification', 'public_gain', 'private_gain',
           'entropy', 'negative_queries', 'negative_keys', 'gate')


def attention_scalars(record: AttentionRecord) -> Dict[str, float]:
    """Mean and spread of what an attention decided.

    Args:
        record (AttentionRecord): A record.

    Returns:
        dict[str, float]: For each map, and for Pola's powers, ``NAME_mean``
        and ``NAME_std`` (over heads and tokens); for CSaN
        ``private_share``, the share of the private path in all energy.
    """
    found = {name: record.maps[name] for name in _SPREAD
             if name in record.maps}
    found.update(record.constants)
    scalars = {}
    for name, value in found.items():
        value = value.float()
        known = value[~value.isnan()]  # rows whose entropy was left out
        # A model that has come apart has none: that is not to be hidden.
        value = known if len(known) else value.flatten()[:1]
        scalars[f'{name}_mean'] = value.mean().item()
        scalars[f'{name}_std'] = value.std(correction=0).item()
    if 'private_energy' in record.maps:
        public, private = (record.maps[f'{name}_energy'].float().sum()
                           for name in ('public', 'private'))
        scalars['private_share'] = (private / (public + private)).item()
    return scalars


@HOOKS.register_module()
class AttentionStatsHook(Hook):
    """Log what the attentions of a model decide while it is trained.

    Every ``interval`` iterations the attentions are watched during the
    forward, which stays what it is, and mean and spread are logged of the
    temperature, amplification, gains, private share of the energy and entropy
    of CSaN, of the negative shares, gate, powers and entropy of Pola, and of
    the entropy of others. They go to the backends of the visualizer
    (TensorBoard, a local file, ...) as ``attention/LAYER/NAME``, and into the
    message hub, with which checkpoints keep them; they do not lengthen the
    lines of the log. At the end their curves are drawn into
    ``attention_stats.png`` in the work dir.

    What costs is the entropy: at most ``rows`` rows of logits of each group
    are made once more every ``interval`` iterations. At the defaults that is
    at most 1 in 50 of the forward's own.

    Args:
        interval (int): Iterations from one record to the next.
            Defaults to 50.
        rows (int): Rows of each group of tokens whose entropy is computed,
            evenly spaced; 0 for none. Defaults to 64.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> custom_hooks = [dict(type='mmcsan.AttentionStatsHook')]
    """

    priority = 'NORMAL'

    def __init__(self, interval: int = 50, rows: int = 64) -> None:
        if interval < 1:
            raise ValueError(f'interval={interval} must be at least 1')
        if rows < 0:
            raise ValueError(f'rows={rows} must be 0 or more')
        self.interval = interval
        self.rows = rows
        self._watch: Optional[contextlib.ExitStack] = None
        self._records: Dict[str, AttentionRecord] = {}

    def before_train(self, runner) -> None:
        """Refuse a model that there is nothing to log of.

        Raises:
            ValueError: If it has no attention of mmcsan.
        """
        with record_attention(_model(runner)):
            pass

    def before_train_iter(self,
                          runner,
                          batch_idx: int,
                          data_batch=None) -> None:
        """Begin to watch, if it is time."""
        self._stop()  # an iteration that failed ended nothing
        if runner.iter % self.interval or not is_main_process():
            return
        self._watch = contextlib.ExitStack()
        self._records = self._watch.enter_context(
            record_attention(_model(runner), entropy=self.rows or False))

    def after_train_iter(self,
                         runner,
                         batch_idx: int,
                         data_batch=None,
                         outputs=None) -> None:
        """Log what was seen."""
        if self._watch is None:
            return
        scalars = {
            f'{PREFIX}/{_layer(name)}/{key}': value
            for name, record in self._records.items()
            for key, value in attention_scalars(record).items()
        }
        self._stop()
        step = runner.iter + 1
        runner.message_hub.update_scalars({**scalars, _STEPS: step})
        runner.visualizer.add_scalars(scalars, step=step)

    def after_train(self, runner) -> None:
        """Draw the curves."""
        self._stop()
        if is_main_process():
            draw_curves(
                Path(runner.work_dir) / 'attention_stats.png',
                *curves_of(runner.message_hub.log_scalars))

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch, self._records = None, {}


def _model(runner) -> torch.nn.Module:
    model = runner.model
    return model.module if is_model_wrapper(model) else model


def _layer(name: str) -> str:
    """The part of a name that tells layers apart."""
    return name.removeprefix('backbone.')


def curves_of(log_scalars) -> Tuple[Curves, List[float]]:
    """The logged numbers, by quantity and layer, and when they were logged.

    Args:
        log_scalars (dict): Buffers of the message hub.

    Returns:
        tuple: ``curves[quantity][layer]``, each a list, and iterations.
    """
    curves: Curves = {}
    for key, buffer in log_scalars.items():
        if key.startswith(f'{PREFIX}/') and key != _STEPS:
            layer, name = key[len(PREFIX) + 1:].rsplit('/', 1)
            curves.setdefault(name, {})[layer] = buffer.data[0].tolist()
    steps = log_scalars[_STEPS].data[0].tolist() if curves else []
    return curves, steps


def draw_curves(path: Path, curves: Curves, steps: List[float]) -> None:
    """Draw a grid of pictures, one a quantity, with a line for each layer.

    Args:
        path (Path): PNG to write; nothing is written without curves.
        curves (dict): Those of :func:`curves_of`.
        steps (list[float]): Iterations at which the numbers were logged.
    """
    # A training without this hook need not load the drawing library.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    names = [n for n in curves if not n.endswith('_std')]
    if not names:
        return
    columns = min(len(names), 3)
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * lines + 0.6), dpi=90,
                    layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    layers = list(dict.fromkeys(la for n in names for la in curves[n]))
    colours = dict(zip(layers, _colours(len(layers))))
    for axis in axes[len(names):]:
        axis.set_axis_off()
    for axis, name in zip(axes, names):
        spread = curves.get(name.replace('_mean', '_std'), {})
        for layer, values in curves[name].items():
            _draw_curve(axis, layer, values, spread.get(layer)
                        if name.endswith('_mean') else None, steps,
                        colours[layer])
        axis.set_title(name.replace('_', ' '), fontsize=10)
        axis.tick_params(labelsize=8)
        axis.ticklabel_format(useOffset=False)
    axes[0].set_xlabel('iteration', fontsize=8)
    handles = {line.get_label(): line for axis in axes
               for line in axis.get_lines()}
    figure.legend(handles.values(), handles, loc='outside lower center',
                  ncols=columns * 2, fontsize=7,
                  title='layers; bands are one standard deviation over heads '
                  'and tokens', title_fontsize=8)
    figure.savefig(path)


def _draw_curve(axis, layer: str, values: List[float],
                spread: Optional[List[float]], x: List[float],
                colour) -> None:
    axis.plot(x, values, '-' if len(x) > 1 else 'o', label=layer,
              color=colour, linewidth=1.2)
    if spread is not None:
        low, high = zip(*((v - s, v + s) for v, s in zip(values, spread)))
        axis.fill_between(x, low, high, color=colour, alpha=0.08)


def _colours(count: int):
    from matplotlib import colormaps
    return colormaps['viridis']([i / max(count - 1, 1) * 0.9
                                 for i in range(count)])
