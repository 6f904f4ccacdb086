//go:build !race

package forward

// raceDetector reports whether the race detector runs.
const raceDetector = false
