package inspect

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// metered starts a world whose plane counts connections to port http of default/web in both families, but no bytes.
func metered(t *testing.T, err error) *world {
	t.Helper()
	w := start(t, func(_ *world, o *Options) {
		o.Opened.Traffic = func(_ context.Context, all *route.Snapshot) (plane.Counted, error) {
			counted := plane.Counted{}
			for i := range all.Service(name("default", "web")).Ports {
				p := &all.Service(name("default", "web")).Ports[i]
				t := plane.Traffic{plane.Connections: 7, plane.Live: 2, plane.Failures: 1}
				counted[p.ID(name("default", "web"))] = plane.PortTraffic{Traffic: t}
			}
			counted[route.PortID{Service: name("default", "gone"), Protocol: cluster.TCP}] = plane.PortTraffic{
				Traffic: plane.Traffic{plane.Live: 9},
			}
			return counted, err
		}
	})
	w.load()
	return w
}

// A port has one row with the sums of both families. Ports without connections are left out, unless they are named.
func TestTrafficOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := metered(t, nil)
		list := must(w.Traffic(t.Context(), Filter{}))
		for i := range list {
			list[i].PerSecond = map[plane.Signal]float64{plane.Connections: 3.5, plane.Failures: 0}
		}
		named := must(w.Traffic(t.Context(), Filter{Namespace: "default", Name: "empty"}))
		golden(t, "traffic.txt", []byte(tabulate(list, true)+"\n"+tabulate(named, false)))
	})
}

func TestTrafficThatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := metered(t, errors.New("no buffer space"))
		if _, err := w.Traffic(t.Context(), Filter{}); err == nil ||
			err.Error() != "read what the kernel counts: no buffer space" {
			t.Error(err)
		}
		w = start(t, nil)
		w.load()
		if _, err := w.Traffic(t.Context(), Filter{}); err == nil ||
			!strings.HasSuffix(err.Error(), "does not count the connections of Services; "+
				"sluice top --help lists the modes that do") {
			t.Error(err)
		}
	})
}
