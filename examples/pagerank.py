"""PageRank of a generated web: no round waits for its late replies, and some never come at all.

python examples/pagerank.py                 in this process
mpirun -n 9 python examples/pagerank.py     a master and eight workers
"""

import numpy as np
from _run import run

import codedla


def generated_web(pages=2000, links=16_000, seed=90_210):
    """Return links from any page to mostly popular ones; a tenth of the pages has none."""
    rng = np.random.default_rng(seed)
    popularity = rng.pareto(1.2, pages) + 0.05
    source = rng.integers(0, pages * 9 // 10, links)
    target = rng.choice(pages, links, p=popularity / popularity.sum())
    return np.stack([source, target], axis=1)


def main(pool):
    """Rank the pages twice: exactly, and with three replies in ten missing in every round."""
    web = generated_web()
    exact = codedla.pagerank(web, pool=pool)
    lossy = codedla.pagerank(web, pool=pool, decode="substitute", erasures=0.3)
    difference = float(np.abs(exact.ranks - lossy.ranks).sum())
    print("highest ranks:", ", ".join(f"page {page}: {rank:.4f}" for page, rank in exact.top(3)))
    print(f"exact decoding: {exact.rounds} rounds; with 30 % of the replies missing, substitute")
    print(f"decoding needs {lossy.rounds}, and differs by {difference:.1e} in all")
    return exact.converged and lossy.converged and difference < 1e-7


if __name__ == "__main__":
    run(main, workers=8)
