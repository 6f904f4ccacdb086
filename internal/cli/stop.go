package cli

import "time"

const (
	// grace is how long parts may take to stop after the last write.
	grace = 800 * time.Millisecond

	// writeTime is how long the current write may take once the program is asked to stop. It is a little more than the
	// longest timeout of a write, and less than the 30 s after which Kubernetes and the systemd unit kill the program.
	writeTime = 22 * time.Second
)

// waitFor waits for a result until written is closed, at most for writeTime, and then for the grace period.
func waitFor(done <-chan error, written <-chan struct{}) error {
	writing := time.NewTimer(writeTime)
	defer writing.Stop()
	select {
	case err := <-done:
		return err
	case <-written:
	case <-writing.C:
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return nil
	}
}
