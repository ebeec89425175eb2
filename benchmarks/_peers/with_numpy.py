"""NumPy in one process with all threads: the limit of this machine."""

import numpy as np
import report

if __name__ == "__main__":
    report.measure(np.matmul, [])
