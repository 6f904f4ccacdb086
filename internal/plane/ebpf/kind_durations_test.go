package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

// measured are the durations of connections of Services whose pools are numbers, without a kernel.
type measured struct {
	t     *testing.T
	pools map[bpf.Pool]bpf.Durations
	d     *durations
}

func newMeasured(t *testing.T, services int) *measured {
	m := &measured{t: t, pools: map[bpf.Pool]bpf.Durations{}}
	ports := newPoolPorts()
	for i := range services {
		ports.ports[poolOf(i)] = route.PortID{Service: cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%03d", i)}}
	}
	m.d = newDurations(func() (map[bpf.Pool]bpf.Durations, error) {
		return maps.Clone(m.pools), nil
	}, ports)
	return m
}

func poolOf(i int) bpf.Pool { return bpf.Pool{byte(i), byte(i >> 8), 15: byte(route.Cluster) + 1} }

// connect adds connections of a Service that took one second.
func (m *measured) connect(service, n int) {
	one := bpf.Durations{Sum: time.Duration(n) * time.Second}
	one.Buckets[14] = uint64(n)
	sum := m.pools[poolOf(service)]
	sum.Add(one)
	m.pools[poolOf(service)] = sum
}

// series returns the counts of some Services; others has the name "other".
func (m *measured) series(names ...string) string {
	m.t.Helper()
	var some []string
	for line := range strings.Lines(metricstest.Values(m.t, metricstest.Registry(m.d), "sluice_service_connect_")) {
		for _, name := range names {
			if strings.Contains(line, fmt.Sprintf("service=%q", name)) {
				_, counts, _ := strings.Cut(strings.TrimSpace(line), "} ")
				some = append(some, name+" "+counts)
			}
		}
	}
	return strings.Join(some, "; ")
}

// Services of two pools have one histogram, and those that are gone none.
func TestDurationsByService(t *testing.T) {
	m := newMeasured(t, 1)
	m.connect(0, 3)
	local := poolOf(0)
	local[15] = byte(route.Local) + 1
	quick := bpf.Durations{Sum: 50 * time.Microsecond}
	quick.Buckets[0] = 1
	m.pools[local], m.pools[bpf.Pool{7}] = quick, quick
	want := `duration_seconds{namespace="ns", service="svc-000"} 4 times, 3 in all`
	if got := metricstest.Values(t, metricstest.Registry(m.d), "sluice_service_connect_"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	shape := metricstest.Shape(metricstest.Gather(t, metricstest.Registry(m.d)))
	bounds := "up to 0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 0.1024 0.2048 0.4096 " +
		"0.8192 1.6384 3.2768 6.5536\n"
	if !strings.HasSuffix(shape, bounds) {
		t.Errorf("got\n%s\nwant bounds\n%s", shape, bounds)
	}
}

// The busiest Services have series. When another becomes busier, no histogram shrinks or grows by connections of
// before: each connection is in the one in which it was collected first.
func TestOthersHaveOneHistogram(t *testing.T) {
	m := newMeasured(t, mostNamed+2)
	for i := range mostNamed {
		m.connect(i, 100+i)
	}
	m.connect(mostNamed, 99)
	names := []string{"svc-000", "svc-049", "svc-050", "svc-051", "other"}
	for _, step := range []struct {
		service, connections int
		want                 string
	}{
		{0, 0, "other 99 times, 99 in all; svc-000 100 times, 100 in all; svc-049 149 times, 149 in all"},
		{mostNamed, 101, "other 200 times, 200 in all; svc-000 100 times, 100 in all; svc-049 149 times, 149 in all"},
		{mostNamed, 1, "other 200 times, 200 in all; svc-049 149 times, 149 in all; svc-050 1 times, 1 in all"},
		{0, 5, "other 205 times, 205 in all; svc-049 149 times, 149 in all; svc-050 1 times, 1 in all"},
		{mostNamed, 5, "other 205 times, 205 in all; svc-049 149 times, 149 in all; svc-050 6 times, 6 in all"},
	} {
		m.connect(step.service, step.connections)
		if got := m.series(names...); got != step.want {
			t.Errorf("after %d connections to %d: got %s, want %s", step.connections, step.service, got, step.want)
		}
	}
	if n := len(m.d.named); n != mostNamed {
		t.Errorf("%d Services have series, want %d", n, mostNamed)
	}
}

// A pool that the kernel has evicted begins again: its new connections are added.
func TestEvictedDurations(t *testing.T) {
	m := newMeasured(t, 1)
	m.connect(0, 5)
	before := m.series("svc-000")
	delete(m.pools, poolOf(0))
	m.connect(0, 2)
	want := "svc-000 5 times, 5 in all, then svc-000 7 times, 7 in all"
	if got := before + ", then " + m.series("svc-000"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUnreadableDurations(t *testing.T) {
	d := newDurations(func() (map[bpf.Pool]bpf.Durations, error) { return nil, errors.New("no map") }, newPoolPorts())
	if _, err := metricstest.Registry(d).Gather(); err == nil || !strings.Contains(err.Error(), "no map") {
		t.Errorf("got %v", err)
	}
}
