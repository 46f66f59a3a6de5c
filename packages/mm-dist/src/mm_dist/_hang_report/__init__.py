"""Say which rank keeps the others waiting, before their collective times out."""

from mm_dist._hang_report._flight_recorder import read_flight_records, recorder_variables
from mm_dist._hang_report._handle import HangReport, start_hang_report

__all__ = ["HangReport", "read_flight_records", "recorder_variables", "start_hang_report"]
