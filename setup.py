"""Installation of mmcsan: what it needs, and its files where mim looks."""
import shutil
import tempfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = {}
exec((ROOT / 'mmcsan' / 'version.py').read_text('utf-8'), VERSION)

# Two generations of mim read these from two folders of an installed wheel:
# one from the package's own, the other from the folder whose name comes first
# in the wheel's list of files. That would be the folder of the wheel's
# metadata, hence a name that sorts before it. An editable install needs
# neither: mim then reads the clone.
MIM_FOLDERS = ('mmcsan/.mim', '_mmcsan_mim/.mim')
CLONE_ONLY = ('setup_env.sh', 'demo.sh', 'run_tests.sh')
MIM_CONTENTS = ('configs', 'tools', 'model-index.yml')


class BuildWithMim(build_py):
    """Add configs, tools and the model index to a wheel."""

    def run(self):
        """Build, then copy what mim asks for."""
        super().run()
        if getattr(self, 'editable_mode', False):
            return
        for folder in MIM_FOLDERS:
            for name in MIM_CONTENTS:
                source = ROOT / name
                target = Path(self.build_lib) / folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(
                        source,
                        target,
                        dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns('__pycache__',
                                                      *CLONE_ONLY))
                else:
                    shutil.copy2(source, target)


def floor(module, distribution):
    """A requirement on a distribution at the floor of its module."""
    return f'{distribution}>={VERSION["REQUIREMENTS"][module].floor}'


extras = {
    # Apart from the rest, so that a plain installation overwrites nothing
    # in an environment that has upstream's distributions or these already.
    'mminstall': [
        floor('torch', 'torch'),
        floor('torchvision', 'torchvision'),
        floor('mmengine', 'onedl-mmengine'),
        floor('mmcv', 'onedl-mmcv'),
        floor('mmpretrain', 'onedl-mmpretrain'),
        floor('mmdet', 'onedl-mmdetection'),
        floor('mmseg', 'onedl-mmsegmentation'),
        'onedl-mim>=0.5.1',
    ],
    'demo': ['mlxtend>=0.23', 'matplotlib', 'pycocotools'],
    'test': [
        'pytest>=7', 'pytest-xdist', 'ruff', 'isort', 'setuptools>=64',
        'wheel'
    ],
    'docs': ['sphinx', 'myst-parser', 'sphinx-rtd-theme'],
    'tensorboard': ['tensorboard>=2.10'],
    'export': ['onnx', 'onnxscript', 'onnxruntime'],
}
# Nothing is left in the clone: mim searches all of an editable install for a
# config and stops at a second copy, and metadata beside the package would hide
# the installed one from a Python started there.
scratch = tempfile.TemporaryDirectory()
setup(
    name='mmcsan',
    version=VERSION['__version__'],
    description='CSaN and Pola attention as backbones for mmpretrain, mmdet '
    'and mmsegmentation',
    long_description=(ROOT / 'README.md').read_text('utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['mmcsan', 'mmcsan.*']),
    python_requires='>=3.10',
    install_requires=['numpy', 'packaging', 'safetensors'],
    extras_require=extras,
    options=dict(
        build=dict(build_base=scratch.name),
        egg_info=dict(egg_base=scratch.name)),
    cmdclass=dict(build_py=BuildWithMim),
    include_package_data=True,
    zip_safe=False,
)
