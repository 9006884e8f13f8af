import sys
import warnings

import pytest

from mmcsan import version
from mmcsan.version import (REQUIREMENTS, DependencyError, Requirement,
                            check_requirements, installed_versions, release,
                            require)

NEED = Requirement('lattice', '2.0.0', '2.3', True)
WISH = Requirement('lattice', '2.0.0', '2.3', False)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Install made-up distributions and require one of their modules."""

    def install(distribution, number, module='lattice', declare=True):
        (tmp_path / module).mkdir(exist_ok=True)
        (tmp_path / module / '__init__.py').write_text('raise SystemExit\n')
        info = tmp_path / f'{distribution}-{number}.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(
            f'Metadata-Version: 2.1\nName: {distribution}\n'
            f'Version: {number}\n')
        if declare:
            (info / 'top_level.txt').write_text(f'docs\n{module}\n')
        (info / 'RECORD').write_text(f'{module}/__init__.py,,\n')

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(version, 'REQUIREMENTS', {
        'lattice': NEED,
        'mmengine': REQUIREMENTS['mmengine']
    })
    return install


@pytest.mark.parametrize('text, numbers', [('2.14.1+cpu', (2, 14, 1)),
                                           ('0.10.8rc1', (0, 10, 8)),
                                           ('3', (3, )), ('unknown', ())])
def test_release(text, numbers):
    assert release(text) == numbers


@pytest.mark.parametrize('declare', [True, False])
def test_a_fork_counts_like_its_upstream(site, declare):
    site('someone-lattice', '2.1.0', declare=declare)
    found = installed_versions(['lattice', 'no_such_module'])
    assert found == {'lattice': ('someone-lattice', '2.1.0')}
    check_requirements()


def test_the_newer_of_two_distributions_counts(site):
    site('lattice', '1.0.0')
    site('someone-lattice', '2.1.0')
    assert installed_versions(['lattice'])['lattice'] == ('someone-lattice',
                                                          '2.1.0')


def test_a_source_tree_has_no_version(tmp_path, monkeypatch):
    (tmp_path / 'lattice.py').write_text('')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_versions(['lattice']) == {'lattice': ('lattice', None)}


@pytest.mark.parametrize('check', [
    check_requirements, lambda: require('lattice')])
def test_below_the_floor_fails_with_the_cure(site, check):
    site('someone-lattice', '1.9.9')
    with pytest.raises(DependencyError) as e:
        check()
    assert 'someone-lattice 1.9.9' in str(e.value)
    assert 'pip install --upgrade "someone-lattice>=2.0.0"' in str(e.value)


def test_an_old_codebase_fails_even_where_it_is_optional(site, monkeypatch):
    site('lattice', '1.0')
    monkeypatch.setitem(version.REQUIREMENTS, 'lattice', WISH)
    with pytest.raises(DependencyError, match='2.0.0'):
        check_requirements()


@pytest.mark.parametrize('number, warned', [('2.3.9', False), ('2.4.0', True),
                                            ('3.0', True), ('2.0.0', False)])
def test_above_the_tested_range_warns_once(site, number, warned):
    site('lattice', number)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        check_requirements()
    ours = [str(w.message) for w in caught if 'tested' in str(w.message)]
    assert len(ours) == warned
    assert all(f'lattice {number}' in text for text in ours)


def test_missing_names_the_extra(site):
    with pytest.raises(DependencyError) as e:
        check_requirements()
    assert 'lattice' in str(e.value)
    assert 'pip install "mmcsan[mminstall]"' in str(e.value)


def test_missing_beside_upstream_names_upstream(site, monkeypatch):
    """The extra would overwrite files of an upstream installation."""
    monkeypatch.setattr(
        version, 'installed_versions',
        lambda modules: {'mmengine': ('mmengine', '0.10.7')})
    with pytest.raises(DependencyError) as e:
        require('lattice', purpose='this config')
    assert 'this config needs lattice' in str(e.value)
    assert str(e.value).endswith('pip install "lattice>=2.0.0"')


def test_optional_and_missing_is_no_error(site, monkeypatch):
    monkeypatch.setitem(version.REQUIREMENTS, 'lattice', WISH)
    check_requirements()
    with pytest.raises(DependencyError):
        require('lattice')


def test_the_environment_of_the_tests_is_within_the_table():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        check_requirements()
    for module, wanted in REQUIREMENTS.items():
        assert release(wanted.floor)[:2] <= release(wanted.tested), module
    assert 'lattice' not in sys.modules
