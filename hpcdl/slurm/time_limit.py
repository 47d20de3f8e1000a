"""Slurm's time limits in minutes; apart from `parse`, for every command reads a site file."""


def slurm_minutes(text: str) -> int:
    """Slurm's time format in minutes, rounded up; `unlimited` is a year and a day.

    Slurm reads `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S` (sbatch(1), --time).
    """
    if text.lower() in {"unlimited", "infinite"}:
        return 366 * 24 * 60
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    total = (int(days or 0) * 24 + hours) * 60 + minutes
    return total + (1 if seconds else 0)


def walltime(minutes: int) -> str:
    """Minutes as D-HH:MM:SS without empty days."""
    days, rest = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{rest // 60:02d}:{rest % 60:02d}:00"
