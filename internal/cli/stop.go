package cli

import "time"

const (
	// grace is how long parts may take to stop once nothing is written any more.
	grace = 800 * time.Millisecond

	// writeTime is how long the current write may take once the program is asked to
	// stop. It is a little more than the longest timeout of a write, and less than the
	// 30 s after which Kubernetes and the systemd unit kill the program.
	writeTime = 22 * time.Second
)

// waitFor waits for a result as long as stopping may take: until written is
// closed, but not for ever, and then for the grace.
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
