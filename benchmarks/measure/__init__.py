"""What the benchmark scripts share: samples, results files, synthetic artifacts, processes."""
