//go:build !linux

package relay

func newSystem(e *Engine) (system, error) { return newPortable(e), nil }

// fileLimit returns how many file descriptors this process may have: a number that all systems
// allow, and to which package os has raised the limit where it has a lower default.
func fileLimit() int { return 8192 }

// maxFlows returns how many UDP flows there may be by default, for a limit of file descriptors.
func maxFlows(_, files int) int { return files / 8 }

// maxListeners returns how many Listeners there may be by default, for a limit of file descriptors. Windows
// has none for sockets.
func maxListeners(int) int { return 1 << 16 }
