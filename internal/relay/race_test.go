//go:build race

package relay

// raceDetector reports whether the race detector runs. Package ipv4 then marks the whole buffer of each datagram,
// which takes many times as long as to receive it.
const raceDetector = true
