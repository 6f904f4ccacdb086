//go:build !race

package relay

// raceDetector reports whether the race detector runs.
const raceDetector = false
