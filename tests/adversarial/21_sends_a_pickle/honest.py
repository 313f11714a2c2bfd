"""Pickles for itself."""

import pickle


def custom_kernel(data):
    return pickle.loads(pickle.dumps(data[0])) * 2
