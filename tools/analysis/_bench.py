"""Fair timing: what is compared takes turns, in one process, on one input."""
import ast
import gc
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Callable, Dict, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import _clone  # noqa: E402, F401

# isort: split
import torch  # noqa: E402

DTYPES = dict(
    float32=torch.float32, float16=torch.float16, bfloat16=torch.bfloat16)


def parse_cfg(text: str):
    """A name, or a dict written as in a config: ``dict(type='CSaN')``.

    Args:
        text (str): What stands on the command line.

    Returns:
        str | dict: The config.

    Raises:
        SystemExit: If it is neither.
    """
    if text.isidentifier():
        return text
    try:
        call = ast.parse(text, mode='eval').body
        if isinstance(call, ast.Call) and call.func.id == 'dict':
            return {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        return ast.literal_eval(call)
    except (SyntaxError, ValueError, AttributeError):
        raise SystemExit(f'error: {text!r} is neither a name nor a dict such '
                         "as \"dict(type='CSaN', variant='bounded')\""
                         ) from None


def parse_sizes(sizes: Sequence[str]) -> List[tuple]:
    """Sizes such as ``56x56`` or, for a square, ``56``: (height, width)."""
    out = []
    for size in sizes:
        numbers = size.lower().split('x')
        if len(numbers) not in (1, 2) or not all(
                n.isdigit() and int(n) for n in numbers):
            raise SystemExit(f'error: size {size!r} is not like 56x56 or 56')
        out.append((int(numbers[0]), int(numbers[-1])))
    return out


def add_options(parser) -> None:
    """Options of every benchmark."""
    parser.add_argument(
        '--mode', choices=['infer', 'train', 'both'], default='both')
    parser.add_argument('--dtype', choices=list(DTYPES), default='float32')
    parser.add_argument('--device', default='cpu')
    parser.add_argument(
        '--rounds', type=int, default=10, help='turns of each arm')
    parser.add_argument(
        '--threads', type=int, help="threads of the CPU; PyTorch's default")
    parser.add_argument(
        '--out',
        default='work_dirs/benchmark',
        help='folder of table and plot')


def check(args) -> None:
    """Refuse what cannot run before any work is done."""
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise SystemExit(f'error: --device {args.device}: PyTorch sees no GPU')
    if args.rounds < 1:
        raise SystemExit('error: --rounds must be at least 1')
    if args.threads:
        torch.set_num_threads(args.threads)


def step(module, inputs, train: bool, dtype) -> Callable[[], None]:
    """One run of a module: forward, or forward and backward.

    Args:
        module (nn.Module): What is timed.
        inputs (tuple): Its arguments; the first is a tensor.
        train (bool): Whether to run backward as well.
        dtype (torch.dtype): Under autocast, unless float32.

    Returns:
        Callable: Runs it once.
    """
    device = inputs[0].device
    low = dtype != torch.float32

    def forward():
        with torch.autocast(device.type, dtype, enabled=low):
            out = module(*inputs)
        return out if isinstance(out, (tuple, list)) else (out, )

    def run():
        if train:
            module.zero_grad(set_to_none=True)
            sum(o.float().sum() for o in forward()).backward()
        else:
            with torch.no_grad():
                forward()
        if device.type == 'cuda':
            torch.cuda.synchronize(device)

    return run


def take_turns(steps: Dict[str, Callable], rounds: int) -> Dict[str, list]:
    """Seconds of each run, the arms one after the other in each round."""
    for run in steps.values():
        run()
        run()
    seconds = {name: [] for name in steps}
    for _ in range(rounds):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(seconds: list) -> tuple:
    """Median, and the middle half: (25 %, 50 %, 75 %)."""
    if len(seconds) == 1:
        return (seconds[0], ) * 3
    low, _, high = quantiles(seconds, n=4, method='inclusive')
    return low, median(seconds), high


def _peak_rss() -> float:
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('VmHWM'):
            return int(line.split()[1]) / 1024
    return float('nan')


def peak_memory(run: Callable, device: str) -> float:
    """MiB that one run needs at its peak beyond what is held before it.

    On a CPU this is resident memory, which only a process that has run
    nothing as large before can tell.

    Args:
        run (Callable): One run.
        device (str): Where it runs.

    Returns:
        float: MiB; nan where the system does not tell.
    """
    gc.collect()
    if device.startswith('cuda'):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    if not Path('/proc/self/clear_refs').exists():
        return float('nan')
    Path('/proc/self/clear_refs').write_text('5')  # forget the peak so far
    before = _peak_rss()
    run()
    return _peak_rss() - before


def memory_elsewhere(script: str, *task) -> float:
    """MiB that a step needs, measured in a fresh process.

    Args:
        script (str): A benchmark, which answers ``--measure`` with a number.
        *task: What to measure, fit for JSON.

    Returns:
        float: MiB beyond inputs and weights.
    """
    result = subprocess.run(
        [sys.executable, script, *sys.argv[1:], '--measure',
         json.dumps(task)],
        capture_output=True,
        text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def modes(args) -> list:
    """Whether to train, for each mode that is asked for."""
    return dict(
        infer=[False], train=[True], both=[False, True])[args.mode]


def machine(device: str) -> str:
    """Where numbers were made, in one line."""
    name = torch.cuda.get_device_name(device) if device.startswith(
        'cuda') else f'{platform.machine()} CPU, {torch.get_num_threads()} ' \
        'threads'
    return f'{name}, PyTorch {torch.__version__}'


def markdown(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table, its columns aligned."""
    cells = [list(map(str, header))] + [list(map(str, row)) for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, ['-' * width for width in widths])
    return '\n'.join(
        '| ' + ' | '.join(c.ljust(w) for c, w in zip(row, widths)) + ' |'
        for row in cells)


def save(folder: str, name: str, text: str) -> Path:
    """Write a report."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    path = path / name
    path.write_text(text)
    return path
