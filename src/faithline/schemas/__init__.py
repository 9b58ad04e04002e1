"""The schema of `params.yaml`, one file a system; `config.py` puts it together."""
