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

// learner returns the part that learns the addresses of pods.
func learner(s plane.Setup, conn *bpf.Conn) plane.Part {
	return plane.Part{Run: func(ctx context.Context) error {
		return conn.Learn(ctx, learnTime, func(err error) {
			s.Log.Error("Addresses of new pods are not learned: their connections are served packet by packet for now; it will be tried again", "error", err)
		})
	}}
}
