"""Computes figures from measurements: medians, limits, shares, and the parts of a step's time.

    limit = cores / (environment + acting + update), each in core seconds per step
    on a GPU: 1 / (environment / cores + acting + update)
"""

from statistics import median
from typing import Any, NamedTuple, Sequence

from fastppo.benchmark.peers import PEERS

TITLES = {"environments": "environments alone", "acting": "acting alone", "update": "update alone",
          "loop": "whole loop"}


class Costs(NamedTuple):
    """The least time that a step takes, in seconds: of one core, or of the GPU."""

    environment: float
    acting: float
    update: float


def costs(session: dict[str, Any], resets: float, epochs: float) -> Costs:
    """The least costs of a step, for this number of resets per step and of epochs."""
    limits, config = session["limits"], session["facts"]["config"]
    peak = max(one["peak"] for one in limits)
    env = median(one["cost"]["step"] for one in limits) + resets * median(
        one["cost"]["reset"] for one in limits)
    acting = limits[0]["act_flops"] * (1 + 1 / config["num_steps"]) / peak
    return Costs(env, acting, limits[0]["update_flops"] * epochs / peak)


def figure(session: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Steps per second of one measured part, with a number of processes, and its limit."""
    part, count, rounds = measured["part"], measured["processes"], measured["rounds"]
    config = session["facts"]["config"]
    least = costs(session, median(one.get("resets", 0.0) for one in rounds),
                  median(one.get("epochs", config["epochs"]) for one in rounds))
    least = shared(session, least, cores(session, count))
    limit = 1 / {"environments": least.environment, "acting": least.acting, "update": least.update,
                 "loop": sum(least)}[part]
    rates = spread(rounds)
    return {"part": part, "processes": count, **rates, "limit": limit,
            "share": rates["median"] / limit}


def spread(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median, lowest and highest rate of some rounds."""
    rates = [one["rate"] for one in rounds]
    return {"median": median(rates), "low": min(rates), "high": max(rates)}


def figures(session: dict[str, Any]) -> list[dict[str, Any]]:
    """All of fastppo's figures, sorted by part."""
    found = [figure(session, one) for one in session["measured"] if one["part"] in TITLES]
    return sorted(found, key=lambda one: (list(TITLES).index(one["part"]), one["processes"]))


def best(session: dict[str, Any]) -> dict[str, Any]:
    """The figure of the fastest whole loop."""
    return max((one for one in figures(session) if one["part"] == "loop"),
               key=lambda one: one["median"])


def shared(session: dict[str, Any], least: Costs, count: float) -> Costs:
    """The costs of a step that `count` cores share; a GPU is one device, whatever they are."""
    of_network = count if session["facts"]["config"]["device"] == "cpu" else 1
    return Costs(least.environment / count, least.acting / of_network, least.update / of_network)


def cores(session: dict[str, Any], processes: int) -> int:
    """The number of cores that `processes` workers can use."""
    usable = session["machine"]["usable_cores"]
    return usable if session["facts"]["native"] else min(max(1, processes), usable)


def peers(session: dict[str, Any]) -> list[dict[str, Any]]:
    """The other systems' figures, each compared with the best of ours."""
    ours = {part: max((one["median"] for one in figures(session) if one["part"] == part),
                      default=0.0) for part in TITLES}
    return [peer_figure(one["part"], one["rounds"], ours[PEERS[one["part"]].part],
                        session["facts"]["config"]["env_name"])
            for one in session["measured"] if one["part"] in PEERS]


def peer_figure(name: str, rounds: Sequence[dict[str, Any]], ours: float, env_name: str
                ) -> dict[str, Any]:
    """The figure of system `name` from the rounds in which it did not fail.

    `ratio` is fastppo's median / its median, None as this where it failed in every round.
    """
    worked = [one for one in rounds if "rate" in one]
    failures = [one["failed"] for one in rounds if "failed" in one]
    rates = spread(worked) if worked else dict.fromkeys(("median", "low", "high"))
    first = worked[0] if worked else {}
    other_env = first.get("env_name", env_name)
    return {"name": name, "title": PEERS[name].title, "version": first.get("version"), **rates,
            "part": PEERS[name].part, "ratio": ours / rates["median"] if worked else None,
            "env_name": "" if other_env == env_name else other_env,
            "failures": len(failures), "failed": failures[-1] if failures else ""}


def parts_of_step(session: dict[str, Any], processes: int) -> dict[str, float]:
    """The parts of a step's time in the whole loop, in seconds, largest first.

    All are from the round of the median rate (of an even number, the upper one). waiting:
    collecting minus the workers' own time, which is starting, ending, and waiting for the slowest
    worker.
    """
    rounds = {one["part"]: one["rounds"] for one in session["measured"]
              if one["processes"] == processes}
    ordered = sorted(rounds["loop"], key=lambda one: one["rate"])
    loop = ordered[len(ordered) // 2]
    acting = 1 / median(one["rate"] for one in rounds["acting"])
    found = {"update": loop["update"], "acting": acting, "stepping": loop["busy"] - acting,
             "waiting": loop["collect"] - loop["busy"],
             "reports": 1 / loop["rate"] - loop["collect"] - loop["update"]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def session_report(session: dict[str, Any]) -> dict[str, Any]:
    """The whole session as it is written to JSON: figures in steps per second, costs in seconds."""
    loop = best(session)
    rounds = next(one for one in session["measured"]
                if one["part"] == "loop" and one["processes"] == loop["processes"])["rounds"]
    least = costs(session, median(one["resets"] for one in rounds),
                  median(one["epochs"] for one in rounds))
    limits = session["limits"]
    return {
        "machine": session["machine"], **session["facts"], "rounds": session["rounds"],
        "limit": {**least._asdict(), "act_flops": limits[0]["act_flops"],
                  "update_flops": limits[0]["update_flops"],
                  "peak_flops": max(one["peak"] for one in limits),
                  "step": median(one["cost"]["step"] for one in limits),
                  "reset": median(one["cost"]["reset"] for one in limits),
                  "resets": median(one["resets"] for one in rounds)},
        "figures": figures(session), "peers": peers(session), "best": loop,
        "seconds": parts_of_step(session, loop["processes"]), "measured": session["measured"]}
