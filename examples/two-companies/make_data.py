"""Makes what two companies and a label holder might have of the same orders: three files, and nobody has all."""

import csv
from pathlib import Path

import numpy as np

ORDERS = 3000
HERE = Path("data")


def write(name: str, header: list[str], rows: list[list[object]]) -> None:
    """A CSV file."""
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(header)
        lines.writerows(rows)


def main() -> None:
    """Whether an order is fraud depends on what both companies see of it."""
    rng = np.random.default_rng(7)
    amount = rng.normal(80, 25, ORDERS).round(2)
    balance = rng.normal(1500, 400, ORDERS).round(2)
    age = rng.normal(0, 1, ORDERS).round(3)
    items = rng.normal(4, 1.5, ORDERS).round(2)
    distance = rng.normal(0, 1, ORDERS).round(3)
    risk = (amount - 80) / 25 - (balance - 1500) / 400 + (items - 4) / 1.5 * distance - 0.5 * age
    fraud = (risk > 0.8).astype(int)
    orders = [f"order-{i:05}" for i in range(ORDERS)]
    HERE.mkdir(exist_ok=True)
    # Each has its orders in its own order.
    bank = [[orders[i], amount[i], balance[i], age[i]] for i in rng.permutation(ORDERS)]
    shop = [[orders[i], items[i], distance[i]] for i in rng.permutation(ORDERS)]
    write("bank.csv", ["order", "amount", "balance", "account_age"], bank)
    write("shop.csv", ["order", "items", "distance"], shop)
    write("labels.csv", ["order", "fraud"], [[order, label] for order, label in zip(orders, fraud, strict=True)])
    print(f"data/: bank.csv, shop.csv and labels.csv, {ORDERS:,} orders each, {fraud.mean():.0%} of them fraud")


if __name__ == "__main__":
    main()
