import time


def load():
    time.sleep(600)  # HERE
