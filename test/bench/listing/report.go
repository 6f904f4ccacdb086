//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/fetch"
	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/harness"
)

// printHead prints the text before the rows of a size.
func printHead(w io.Writer, services, rounds int) {
	fmt.Fprintf(w, `### %d Services of %d endpoints

Clients start at once, each with a connection of its own, and fetch all Services and EndpointSlices at the same time,
in protobuf without gzip. They drain the bytes and decode nothing, because the API server shares the CPUs with them.
Each row has its own start of the API server, and %d rounds: times of a client are of all rounds, CPU is the median
round's. Pages are consistent reads.

| how | clients | last one done, median | longest | each client, p50 | p90 | p99 | MB for each `+
		`| CPU of the API server | its RSS before, MB | peak | CPU of the clients | requests refused (429) |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`, services, filled.Endpoints, rounds)
}

func (r *result) print(w io.Writer) {
	cost := fetch.Median(r.costs)
	quantile := func(q float64) string { return milliseconds(harness.Quantile(r.each, q)) }
	fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s | %.1f | %s | %d | %d | %s | %d |\n", r.Name, r.clients,
		milliseconds(cost.Took), milliseconds(slices.Max(r.each)), quantile(0.5), quantile(0.9), quantile(0.99),
		float64(r.bytes)/float64(len(r.each))/(1<<20), milliseconds(cost.Server), r.before>>20, r.peak>>20,
		milliseconds(cost.Client), r.refused)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.*f ms", decimals(d), float64(d)/float64(time.Millisecond))
}

// decimals is 1 for durations below 100 ms.
func decimals(d time.Duration) int {
	if d < 100*time.Millisecond {
		return 1
	}
	return 0
}
