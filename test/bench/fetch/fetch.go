//go:build linux

// Package fetch has bare clients of an API server: they fetch the Services and
// EndpointSlices that Sluice fetches, and do nothing with them.
package fetch

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"golang.org/x/sys/unix"
)

// kind is a kind of objects and which of them Sluice fetches.
type kind struct {
	path   string
	choose metav1.ListOptions
}

func kinds() [2]kind {
	return [2]kind{
		{"/api/v1/services", metav1.ListOptions{
			LabelSelector: "!service.kubernetes.io/service-proxy-name", FieldSelector: "spec.clusterIP!=None",
		}},
		{"/apis/discovery.k8s.io/v1/endpointslices", metav1.ListOptions{LabelSelector: "!service.kubernetes.io/headless"}},
	}
}

// Counts are the numbers of Services and of EndpointSlices that a client has fetched.
type Counts [2]int

// fromCache requests a list from the watch cache of the API server.
func fromCache(o metav1.ListOptions) metav1.ListOptions {
	o.ResourceVersion = "0"
	return o
}

// streamed requests a list as a stream of events, like a reflector of client-go.
func streamed(o metav1.ListOptions) metav1.ListOptions {
	o.SendInitialEvents, o.AllowWatchBookmarks = new(true), true
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	return o
}

// connect returns an HTTP client with a new connection, which requests no compression.
func connect(config *rest.Config) (*http.Client, error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare a client: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: tls, DisableCompression: true, ForceAttemptHTTP2: true}
	return &http.Client{Transport: transport}, nil
}

// Cost is the duration of something and the CPU time that this process and the API server used meanwhile.
type Cost struct{ Took, Client, Server time.Duration }

// Measure measures the cost of f. server is the PID of the API server.
func Measure(server int, f func() error) (Cost, error) {
	client, err := CPU(0)
	if err != nil {
		return Cost{}, err
	}
	before, err := CPU(server)
	if err != nil {
		return Cost{}, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return Cost{}, err
	}
	cost := Cost{Took: time.Since(began)}
	after, err := CPU(server)
	if err != nil {
		return Cost{}, err
	}
	cost.Server = after - before
	after, err = CPU(0)
	cost.Client = after - client
	return cost, err
}

// CPU returns the CPU time of a process, or of this one if pid is 0. Unlike /proc it has no ticks of 10 ms.
func CPU(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel: user and system time of all threads
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Median returns the median of each field.
func Median(costs []Cost) Cost {
	middle := func(field func(Cost) time.Duration) time.Duration {
		var all []time.Duration
		for _, c := range costs {
			all = append(all, field(c))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return Cost{
		Took:   middle(func(c Cost) time.Duration { return c.Took }),
		Client: middle(func(c Cost) time.Duration { return c.Client }),
		Server: middle(func(c Cost) time.Duration { return c.Server }),
	}
}

// contentType is the format that Sluice and kube-proxy request.
const contentType = runtime.ContentTypeProtobuf
