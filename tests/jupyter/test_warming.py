"""The modules that `%load_ext gdlab` imports while a person types: they are at hand, and no thread stays."""

import json
import subprocess
import sys

CODE = """
import json, sys, threading
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
threads = lambda: sorted(t.name for t in threading.enumerate() if t.name.startswith("gdlab"))
shell.run_line_magic("load_ext", "gdlab")
while_loading = threads()
for thread in threading.enumerate():
    if thread.name == "gdlab-warming": thread.join()
wanted = ("wgpu", "egglog.bindings", "egglog", "gdlab.devices.cpu.cpu_device")
fetched = [name for name in wanted if name in sys.modules]
shell.run_line_magic("reload_ext", "gdlab")
again = threads()
from gdlab.jupyter import warming
warming._left[:] = [lambda: called.append(1), lambda: 1 / 0, lambda: called.append(2)]
called = []
shell.run_line_magic("reload_ext", "gdlab")
shell.run_line_magic("unload_ext", "gdlab")
print(json.dumps([while_loading, fetched, again, threads(), called in ([], [1], [1, 2])]))
"""


def test_loading_fetches_what_the_first_cell_needs_and_leaves_no_thread() -> None:
    """A part that fails is left to the cell; unloading waits for the part in hand."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    while_loading, fetched, again, left, in_order = json.loads(done.stdout.splitlines()[-1])
    assert while_loading == ["gdlab-warming"]
    # the package of egglog takes a second
    assert fetched == ["wgpu", "egglog.bindings", "gdlab.devices.cpu.cpu_device"]
    assert again == [] and left == [] and in_order
    assert done.stderr == ""
