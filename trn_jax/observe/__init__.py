"""Seeing inside an emulated program: where numbers break, what is rounded, what every operation computes."""
