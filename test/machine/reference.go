package machine

import "time"

// The times of a thousand operations on a fast idle machine: 2 cores, Linux 6.18. `go run ./test/machine/calibrate
// -reference` prints them.
const (
	spawnReference     = 790 * time.Millisecond
	namespaceReference = 400 * time.Millisecond
	callReference      = 180 * time.Microsecond
	computeReference   = 1640 * time.Microsecond
)
