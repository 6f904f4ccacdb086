package ebpf

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// learnTime is how long addresses of clients are learned after the start, and after the last connection of an unknown client. Meanwhile
// each TCP connection of the node takes about 0.2 us longer.
const learnTime = time.Minute

// learnRetry is the pause after the reports of unknown clients could not be read.
const learnRetry = 5 * time.Second

// learner returns the part that learns the addresses of pods. It goes on after errors: rules do not depend on it.
func learner(s plane.Setup, conn *bpf.Conn) plane.Part {
	failed := func(err error) {
		s.Log.Error("Addresses of new pods are not learned: their connections are served packet by packet for now; it will be tried again", "error", err)
	}
	return plane.Part{Run: func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := conn.Learn(ctx, learnTime, failed); err != nil {
				failed(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(learnRetry):
			}
		}
		return nil
	}}
}
