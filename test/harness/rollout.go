//go:build linux

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// RolloutPort is the port of the pods of a Rollout.
const RolloutPort = 8080

// RolloutEndpoint is an endpoint during a roll-out.
type RolloutEndpoint struct {
	Pod         string // its name
	Addr        netip.Addr
	Terminating bool
}

// Rollout replaces the pods of a Service one after another, as a Deployment does: it starts a pod, publishes its
// endpoint, and terminates one of the pods before without waiting for its end.
type Rollout struct {
	Hosts    []*lab.Host   // twice as many as pods serve
	Took     time.Duration // of each request
	Lag      time.Duration // from the beginning of a termination until the endpoint is published as terminating
	Publish  func([]RolloutEndpoint) error
	PreStop  func(*lab.Host) error // the hook; nil: none, so that a pod ends at once
	serial   int
	mu       sync.Mutex
	serving  []*rolled // in the order in which they started
	stopping sync.WaitGroup
	errs     []error
}

// rolled is a pod of a Rollout.
type rolled struct {
	RolloutEndpoint

	host   *lab.Host
	server *http.Server
}

// Start starts the first pods.
func (r *Rollout) Start() error {
	for range len(r.Hosts) / 2 {
		if err := r.add(); err != nil {
			return err
		}
	}
	return nil
}

// Roll replaces all pods, and returns when the last of them has ended.
func (r *Rollout) Roll() error {
	for range len(r.Hosts) / 2 {
		if err := r.add(); err != nil {
			return err
		}
		old := r.oldest()
		r.stopping.Go(func() {
			if err := r.terminate(old); err != nil {
				r.mu.Lock()
				r.errs = append(r.errs, err)
				r.mu.Unlock()
			}
		})
		time.Sleep(r.Lag + 100*time.Millisecond) // as long as a pod needs to start
	}
	r.stopping.Wait()
	return errors.Join(r.errs...)
}

// add starts a pod on a host without one.
func (r *Rollout) add() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := slices.IndexFunc(r.Hosts, func(h *lab.Host) bool {
		return !slices.ContainsFunc(r.serving, func(p *rolled) bool { return p.host == h })
	})
	if free < 0 {
		return errors.New("each host has a pod")
	}
	r.serial++
	p := &rolled{host: r.Hosts[free]}
	p.Pod, p.Addr = fmt.Sprintf("web-%d", r.serial), p.host.Addr4()
	var l net.Listener
	err := p.host.Do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", RolloutPort))
		return err
	})
	if err != nil {
		return err
	}
	p.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(r.Took)
			_, _ = io.WriteString(w, p.Pod) // the client counts failures
		})}
	go func() { _ = p.server.Serve(l) }() // until the pod ends
	r.serving = append(r.serving, p)
	return r.publish()
}

func (r *Rollout) oldest() *rolled {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.serving, func(p *rolled) bool { return !p.Terminating })
	r.serving[i].Terminating = true // published by terminate
	return r.serving[i]
}

// terminate runs the hook and then ends the pod, with the requests that it still has.
func (r *Rollout) terminate(p *rolled) error {
	var published sync.WaitGroup
	published.Go(func() {
		time.Sleep(r.Lag)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, r.publish())
	})
	var err error
	if r.PreStop != nil {
		err = r.PreStop(p.host)
	}
	_ = p.server.Close() // its clients count what is lost
	published.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving = slices.DeleteFunc(r.serving, func(o *rolled) bool { return o == p })
	return errors.Join(err, r.publish())
}

// publish publishes all endpoints. The caller holds the lock.
func (r *Rollout) publish() error {
	all := make([]RolloutEndpoint, len(r.serving))
	for i, p := range r.serving {
		all[i] = p.RolloutEndpoint
	}
	return r.Publish(all)
}

// Slice returns the EndpointSlice of a Service during a roll-out.
func Slice(service string, endpoints []RolloutEndpoint) Object {
	slice := EndpointSlice(service, "IPv4", []Object{{"port": RolloutPort}})
	var all []Object
	for _, e := range endpoints {
		all = append(all, Object{
			"addresses": []string{e.Addr.String()}, "targetRef": Object{"kind": "Pod", "name": e.Pod},
			"conditions": Object{"ready": !e.Terminating, "serving": true, "terminating": e.Terminating},
		})
	}
	slice["endpoints"] = all
	return slice
}

// Load is a constant rate of requests, each over a new connection.
type Load struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu   sync.Mutex
	done int
	lost []error
}

// StartLoad sends so many requests in each second from a host, until End.
func StartLoad(from *lab.Host, url string, perSecond int) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel}
	client := Client(from, 10*time.Second)
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	l.wait.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.wait.Go(func() { l.count(request(client, url)) })
			}
		}
	})
	return l
}

func request(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

func (l *Load) count(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	if err != nil {
		l.lost = append(l.lost, err)
	}
}

// End ends the requests, and returns how many there were and the errors of those that failed.
func (l *Load) End() (done int, lost []error) {
	l.cancel()
	l.wait.Wait()
	return l.done, l.lost
}
