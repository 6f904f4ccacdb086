package drain

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// A pod can wait for itself only, by its own address. Other clients, and pods in the network of the node, get an error.
func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		of := func(_ context.Context, at netip.Addr) (Pod, error) {
			switch at {
			case pod.Addrs[0]:
				return pod, nil
			case netip.MustParseAddr("10.1.0.9"), node:
				return Pod{Addrs: []netip.Addr{at}}, nil
			}
			return Pod{}, errors.New(`no pod "` + at.String() + `"`)
		}
		h := NewWaits(options(ct), ignore).Handler(of)
		ct.begin(tcp(1))
		const busy, bad = "default/web-0 still has 1 connection after ", ": want a time up to 10m0s, such as 25s\n"
		for _, c := range []struct {
			name, method, path, from string
			status                   int
			body                     string
			took                     time.Duration
		}{
			{"busy", "GET", "/drain?wait=3s", "10.1.0.1:5", http.StatusGatewayTimeout, busy + "3s\n", 3 * time.Second},
			{"mapped", "GET", "/drain?wait=3s", "[::ffff:10.1.0.9]:5", http.StatusOK, "10.1.0.9 is drained after 2s\n", Quiet},
			{"default", "GET", "/drain", "10.1.0.1:5", http.StatusGatewayTimeout, busy + "25s\n", defaultWait},
			{"stranger", "GET", "/drain?wait=3s", "10.1.0.3:5", http.StatusForbidden, "no pod \"10.1.0.3\"\n", 0},
			{"node", "GET", "/drain", node.String() + ":5", http.StatusForbidden, ErrHostNetwork.Error() + "\n", 0},
			{"bad", "GET", "/drain?wait=x", "10.1.0.1:5", http.StatusBadRequest, `wait="x"` + bad, 0},
			{"long", "GET", "/drain?wait=11m", "10.1.0.1:5", http.StatusBadRequest, `wait="11m"` + bad, 0},
			{"negative", "GET", "/drain?wait=-1s", "10.1.0.1:5", http.StatusBadRequest, `wait="-1s"` + bad, 0},
			{"post", "POST", "/drain", "10.1.0.1:5", http.StatusMethodNotAllowed, "Method Not Allowed\n", 0},
			{"path", "GET", "/", "10.1.0.1:5", http.StatusNotFound, "404 page not found\n", 0},
		} {
			r, out, began := httptest.NewRequest(c.method, c.path, nil), httptest.NewRecorder(), time.Now()
			r.RemoteAddr = c.from
			h.ServeHTTP(out, r)
			took := time.Since(began)
			if out.Code != c.status || out.Body.String() != c.body || took < c.took || took > c.took+pollPeriod {
				t.Errorf("%s: %d %q after %s, want %d %q after %s", c.name, out.Code, out.Body, took, c.status, c.body, c.took)
			}
		}
		ct.err = errors.New("no table")
		r, out := httptest.NewRequest("GET", "/drain", nil), httptest.NewRecorder()
		r.RemoteAddr = "10.1.0.1:5"
		if h.ServeHTTP(out, r); out.Code != http.StatusInternalServerError || out.Body.String() != "no table\n" {
			t.Errorf("without a table: %d %q", out.Code, out.Body)
		}
	})
}
