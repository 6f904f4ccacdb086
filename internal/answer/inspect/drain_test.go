package inspect

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/text"
)

// What is left is printed with what is known of each connection, and how many more there are.
func TestDrainIsPrinted(t *testing.T) {
	at := time.Date(2026, 11, 28, 9, 14, 2, 0, time.UTC)
	client, service, pod := netip.MustParseAddrPort("10.1.0.7:4312"), netip.MustParseAddrPort("10.96.0.10:80"),
		netip.MustParseAddrPort("10.1.0.5:8080")
	result := drain.Result{Live: 3, Took: 30 * time.Second, Flows: []drain.Flow{
		{Protocol: "tcp", Client: client, To: service, Backend: pod, Since: at, Bytes: new(uint64(2048))},
		{Protocol: "udp", Client: client, To: service, Backend: pod, Since: at, Idle: new(4.0)},
	}}
	of := drain.Pod{Name: cluster.Name{Namespace: "default", Name: "web-0"}}
	d := Drain{Summary: drain.Sentence(of, result), Live: 3, Flows: result.Flows}
	const want = `default/web-0 still has 3 connections after 30s
CLIENT         TO             POD            PROTOCOL  SINCE     IDLE  BYTES
10.1.0.7:4312  10.96.0.10:80  10.1.0.5:8080  tcp       09:14:02  -     2 KiB
10.1.0.7:4312  10.96.0.10:80  10.1.0.5:8080  udp       09:14:02  4s    -
and 1 more
`
	if got := text.Printed(d); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := text.Printed(Drain{Summary: "a is drained"}), "a is drained\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
