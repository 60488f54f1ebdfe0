"""The functions that SQL of the settings may call. Each has the same result for the same rows at any time, and reads
nothing but them: no file, no setting, no clock. A function that is not listed here is refused."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES = _names(
    "count count_star count_if sum min max avg bool_and bool_or stddev stddev_pop stddev_samp variance var_pop"
    " var_samp median"
)
ORDERED_AGGREGATES = _names("string_agg array_agg list")
"""Aggregate functions whose result depends on the order of the rows. A call of one must state an order."""

WINDOWS = _names("row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value")

SCALARS = _names(
    "+ - * / // % ** ^ || ~~ !~~ ~~* !~~* ~ & | << >> -> ->> @"
    " abs round round_even floor ceil ceiling trunc sign mod power pow sqrt cbrt exp ln log log2 log10 greatest least"
    " divide multiply subtract add fmod pi"
    " coalesce nullif ifnull"
    " lower upper lcase ucase trim ltrim rtrim substr substring left right length len strlen char_length concat"
    " concat_ws replace translate reverse starts_with ends_with prefix suffix contains position strpos instr"
    " split_part like_escape not_like_escape ilike_escape not_ilike_escape"
    " regexp_matches regexp_full_match regexp_replace regexp_extract ascii unicode chr md5 sha256 hex unhex"
    " date_trunc datetrunc date_part datepart date_diff datediff date_sub datesub year month day quarter week"
    " weekofyear dayofweek isodow dayofyear yearweek isoyear hour minute second millisecond microsecond dayname"
    " monthname last_day make_date strftime epoch epoch_ms epoch_us to_years to_quarters to_months to_weeks to_days"
    " to_hours to_minutes to_seconds to_milliseconds to_microseconds"
    " json_extract json_extract_string json_extract_path json_extract_path_text"
    " octet_length isnan isfinite isinf list_value list_contains array_length"
)
"""Functions and operators that compute a value from values of one row."""

CLOCKS = _names(
    "current_date current_time current_timestamp localtime localtimestamp now today user current_user session_user"
    " current_role current_schema current_catalog current_database rowid"
)
"""Names without brackets which DuckDB takes for a function or a pseudo-column, unless a column is called so."""
