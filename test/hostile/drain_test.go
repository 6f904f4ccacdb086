//go:build linux

package hostile

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// drainAt is where pods wait for their last flow.
const drainAt = nodeAddr + ":10261"

// drains attack the server that pods ask when to end: strangers, and a pod that begins
// waits without end. Meanwhile another pod gets its answer.
func drains() []attack {
	stranger := badClient{"", "GET /drain?wait=10m HTTP/1.1\r\nHost: node\r\n\r\n", "", 0}
	return []attack{{
		name: "floods of waits for flows", flags: []string{"--drain-bind-address=" + drainAt},
		limits: limits{cpu: 0.75}, duration: 5 * time.Second,
		during: func(ctx context.Context, s *attackTest) error {
			stranger.connectMany(ctx, s.lab.Outside, drainAt, clientConnections)
			stranger.connectMany(ctx, s.pods[1], drainAt, clientConnections)
			for _, q := range []struct {
				from  *lab.Host
				query string
				code  int
			}{
				{s.lab.Outside, "", http.StatusForbidden},
				{s.pods[0], "?wait=1000h", http.StatusBadRequest},
				{s.client, "", http.StatusForbidden}, // no Service selects it
			} {
				s.pause(ctx, 100*time.Millisecond)
				if err := refused(q.from, q.query, q.code); err != nil {
					return err
				}
			}
			code, body, err := harness.Get(s.pods[0], time.Minute, "http://"+drainAt+"/drain?wait=100ms")
			if err != nil || code != http.StatusOK && code != http.StatusGatewayTimeout {
				return fmt.Errorf("a pod gets no answer during the flood: %d %s, %w", code, body, err)
			}
			<-ctx.Done()
			return nil
		},
	}}
}

// refused returns an error unless a host gets a status. The server may close the connection of a host that has many.
func refused(from *lab.Host, query string, want int) error {
	code, body, err := harness.Get(from, time.Minute, "http://"+drainAt+"/drain"+query)
	if err == nil && code != want {
		return fmt.Errorf("%s asks for %q: status %d %s, want %d", from.Name(), query, code, body, want)
	}
	return nil
}
