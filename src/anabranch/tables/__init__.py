"""Tables: reads CSV and Parquet files, for streams and for sources, and knows the rules of their columns."""

from anabranch.tables.columns import Column
from anabranch.tables.form import MISSING_VALUES, TableForm
from anabranch.tables.opening import open_table
from anabranch.tables.reader import Reader

__all__ = ["MISSING_VALUES", "Column", "Reader", "TableForm", "open_table"]
