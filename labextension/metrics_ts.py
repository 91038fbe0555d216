"""Print the metrics of layouts, with the words beside them.

`python labextension/metrics_ts.py > labextension/src/doc/metrics.ts`
"""

from __future__ import annotations

import inspect
import json
import re
import sys

from gdlab.view.layout import metrics

NAMED = re.compile(r"^([A-Z_]+) = .*?(?:  # (.*))?$")


def typescript() -> str:
    """Return the whole file: its sections and comments are those of the Python file."""
    lines = ["// The metrics of layouts: generated from gdlab/view/layout/metrics.py by metrics_ts.py."]
    for line in inspect.getsource(metrics).splitlines()[4:]:
        found = NAMED.match(line)
        if found:
            said = f" // {found[2]}" if found[2] else ""
            value = json.dumps(getattr(metrics, found[1]), ensure_ascii=False)
            lines.append(f"export const {found[1]} = {value};{said}")
        else:
            lines.append(line.replace("# ", "// ", 1))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(typescript())
