"""Computes figures from measurements: medians, limits, shares, and the parts of a step's time.

    limit = cores / (environment + acting + update), each in core seconds per step
    on a GPU: 1 / (environment / cores + acting + update)
"""

from statistics import median
from typing import Any, Sequence

from fastppo.benchmark.peers import PEERS

TITLES = {"environments": "environments alone", "acting": "acting alone", "update": "update alone",
          "loop": "whole loop"}


def costs(session: dict[str, Any], resets: float, epochs: float) -> dict[str, float]:
    """The least seconds of a core, or of the GPU, for the parts of a step.

    For this number of resets per step and of epochs.
    """
    limits, config = session["limits"], session["facts"]["config"]
    peak = max(one["peak"] for one in limits)
    env = median(one["cost"]["step"] for one in limits) + resets * median(
        one["cost"]["reset"] for one in limits)
    acting = limits[0]["act_flops"] * (1 + 1 / config["num_steps"]) / peak
    return {"environment": env, "acting": acting,
            "update": limits[0]["update_flops"] * epochs / peak}


def figure(session: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Steps per second of one measured part, with a number of processes, and its limit."""
    part, count, rounds = measured["part"], measured["processes"], measured["rounds"]
    config, rates, used = session["facts"]["config"], spread(rounds), cores(session, count)
    resets = median(one.get("resets", 0.0) for one in rounds)
    least = costs(session, resets, median(one.get("epochs", config["epochs"]) for one in rounds))
    network = used if config["device"] == "cpu" else 1  # a GPU is one device
    env, acting, update = (least["environment"] / used, least["acting"] / network,
                           least["update"] / network)
    limit = 1 / {"environments": env, "acting": acting, "update": update,
                 "loop": env + acting + update}[part]
    return {"part": part, "processes": count, **rates, "limit": limit,
            "share": rates["median"] / limit, "costs": least, "resets": resets}


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
    loop, limits = best(session), session["limits"]
    return {
        "machine": session["machine"], **session["facts"], "rounds": session["rounds"],
        "limit": {**loop["costs"], "act_flops": limits[0]["act_flops"],
                  "update_flops": limits[0]["update_flops"],
                  "peak_flops": max(one["peak"] for one in limits),
                  "step": median(one["cost"]["step"] for one in limits),
                  "reset": median(one["cost"]["reset"] for one in limits),
                  "resets": loop["resets"]},
        "figures": figures(session), "peers": peers(session), "best": loop,
        "seconds": parts_of_step(session, loop["processes"]), "measured": session["measured"]}
