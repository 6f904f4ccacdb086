package cli

import "time"

// grace is how long parts may take to stop once told to.
const grace = 800 * time.Millisecond

// waitFor waits for a result for as long as stopping may take.
func waitFor(done <-chan error) error {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return nil
	}
}
