package machine

import "time"

// The times of a thousand operations on a fast idle machine: 2 cores, Linux 6.18. `go run ./test/machine/calibrate
// -reference` prints them.
const (
	spawnReference     = 670 * time.Millisecond
	namespaceReference = 350 * time.Millisecond
	callReference      = 175 * time.Microsecond
	computeReference   = 1635 * time.Microsecond
)
