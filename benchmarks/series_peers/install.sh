#!/bin/sh
# Environments for the peers of ../series.py, from the repository root:
#     sh benchmarks/series_peers/install.sh DIR [PEER ...]
# DIR/<peer>/bin/python then has that peer and torch. Peers do not agree on the packages below them, hence one for each.
set -eu
directory=$1
shift
for peer in "${@:-}"; do
    for each in ${peer:-neuralhydrology neuralforecast darts gluonts pytorch_forecasting}; do
        case $each in
        neuralhydrology) package=neuralhydrology==1.13.0 ;;
        pytorch_forecasting) package=pytorch-forecasting ;;
        *) package=$each ;;
        esac
        python -m venv "$directory/$each"
        "$directory/$each/bin/pip" install --quiet -c constraints/torch-cpu.txt "$package" torch "pandas<3"
    done
done
