"""The README and the docs point at what is there."""
import re

import pytest


def pages(root):
    return [root / 'README.md', *sorted((root / 'docs').glob('*.md')),
            *sorted((root / 'configs').glob('*/README.md'))]


def sections(page):
    """The names by which the headings of a page are linked."""
    return {
        re.sub(r'[^\w -]', '', heading.lower()).strip().replace(' ', '-')
        for heading in re.findall(r'^#+ (.+)$', page.read_text(), re.M)
    }


def test_links_resolve(root):
    seen = 0
    for page in pages(root):
        for link in re.findall(r'\]\(([^)]+)\)', page.read_text()):
            file, _, section = link.partition('#')
            if '://' in link:
                continue
            there = page.parent / file if file else page
            assert there.exists(), (page.name, link)
            if section:
                assert section in sections(there), (page.name, link)
            seen += 1
    assert seen > 10


def test_nothing_is_left_to_fill_in(root):
    for page in pages(root):
        assert not re.search(r'TODO|FIXME|XXX|DEMO_TABLE', page.read_text())


@pytest.mark.parametrize('folder',
                         ['csan', 'pola', 'polaformer_pp', 'baseline'])
def test_every_config_is_in_its_readme(root, folder):
    text = (root / 'configs' / folder / 'README.md').read_text()
    for path in (root / 'configs' / folder).glob('*.py'):
        assert f'({path.name})' in text


def test_every_checkpoint_format_is_documented(root):
    from mmcsan.checkpoints.formats import FORMATS
    text = (root / 'docs' / 'checkpoints.md').read_text()
    table = [line for line in text.splitlines() if line.startswith('| ')]
    for form in FORMATS:
        if form.name.startswith('mmcsan '):
            row = next(line for line in table if '| mmcsan' in line)
            assert form.name.split()[1].rstrip(',') in row, form.name
            continue
        words = form.name.replace(', average pooling', '').replace(
            ' with a class token', '')
        row = [line for line in table if form.family in line
               and all(w.strip('(),') in line for w in words.split())]
        assert row, form.name
