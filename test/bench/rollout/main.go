//go:build linux

// Command rollout counts the requests that are lost during roll-outs, at a constant rate of requests, each over a new
// connection, with kube-proxy and with Sluice, whose pods ask it in a preStop hook when to end. No pod sleeps.
//
//	go run ./test/bench/rollout            # 20 roll-outs of 5 pods at 1,000 requests a second: five minutes
//	go run ./test/bench/rollout -rolls 2   # to verify that it works
//
// KUBEBUILDER_ASSETS is the folder with kube-apiserver and etcd (make test-assets), KUBE_PROXY the path of kube-proxy;
// without it only Sluice is measured. It touches nothing outside of its network namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	drainAt = "192.168.0.2:10261"
	took    = 20 * time.Millisecond  // of a request
	lag     = 300 * time.Millisecond // of the controllers, from the end of a pod until its endpoint is terminating
)

type options struct {
	rolls, pods, rate int
}

// contender is a proxy, and what a pod does before it ends.
type contender struct {
	title   string
	program string
	flags   string // of the configuration and the command line
	hook    func(*lab.Host) error
}

func main() {
	var o options
	flag.IntVar(&o.rolls, "rolls", 20, "roll-outs of each proxy")
	flag.IntVar(&o.pods, "pods", 5, "pods of the Service")
	flag.IntVar(&o.rate, "rate", 1000, "requests a second")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "rollout:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if err := errors.Join(apiserver.Assets(), lab.Enter()); err != nil {
		return err
	}
	program, err := harness.Program()
	if err != nil {
		return err
	}
	all := []contender{
		{"Sluice, no hook", program, "", nil},
		{"Sluice, hook", program, "--drain-bind-address=" + drainAt, hook},
	}
	if kubeProxy := os.Getenv("KUBE_PROXY"); kubeProxy != "" {
		all = append([]contender{{"kube-proxy, no hook", kubeProxy, "", nil}}, all...)
	}
	fmt.Printf("| %d roll-outs of %d pods at %d requests a second "+
		"| requests | lost | time of a roll-out | CPU of the proxy |\n|---|---|---|---|---|\n", o.rolls, o.pods, o.rate)
	for _, c := range all {
		var failed error
		if err := errors.Join(lab.Run(func(t lab.T) { failed = measure(t, o, c) }), failed); err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
	}
	return nil
}

// hook is what a pod does in its preStop hook.
func hook(pod *lab.Host) error {
	code, body, err := harness.Get(pod, time.Minute, "http://"+drainAt+"/drain?wait=30s")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status %d: %s", code, body)
	}
	return err
}

// measure prints the row of a contender.
func measure(t lab.T, o options, c contender) error {
	server, err := filled.Start(t, 1, func(i int) runtime.Object { return filled.Slice(i, 0) })
	if err != nil {
		return err
	}
	l := lab.New(t, lab.Options{})
	server.Forward(t, l.NodeA)
	client := l.Pod(l.NodeA, "10.180.0.9")
	r := &harness.Rollout{Took: took, Lag: lag, PreStop: c.hook, Publish: func(all []harness.RolloutEndpoint) error {
		return publish(server, all)
	}}
	for i := range 2 * o.pods {
		r.Hosts = append(r.Hosts, l.Pod(l.NodeA, netip.AddrFrom4([4]byte{10, 180, 2, byte(i + 1)}).String()))
	}
	if err := r.Start(); err != nil {
		return err
	}
	proxy, err := start(t, l.NodeA, server, c)
	if err != nil {
		return err
	}
	url := "http://" + filled.Target(0).String() + "/"
	if err := proxy.Until(time.Minute, "the Service", func() error {
		_, _, err := harness.Get(client, time.Second, url)
		return err
	}); err != nil {
		return err
	}
	before, err := proxy.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	load := harness.StartLoad(client, url, o.rate)
	for range o.rolls {
		if err = r.Roll(); err != nil {
			break
		}
	}
	each := time.Since(began) / time.Duration(o.rolls)
	done, lost := load.End()
	after, cpuErr := proxy.CPU()
	if err := errors.Join(err, cpuErr); err != nil {
		return err
	}
	fmt.Printf("| %s | %d | %d | %.1f s | %.1f %% |\n", c.title, done, len(lost), each.Seconds(),
		100*(after-before).Seconds()/time.Since(began).Seconds())
	return nil
}

// publish writes the endpoints of the Service.
func publish(s *filled.Server, all []harness.RolloutEndpoint) error {
	slice := filled.Slice(0, 0)
	slice.UID, slice.CreationTimestamp = "", metav1.Time{}
	port := int32(harness.RolloutPort)
	for i := range slice.Ports {
		slice.Ports[i].Port = &port
	}
	slice.Endpoints = []discoveryv1.Endpoint{}
	node := filled.NodeName
	for _, e := range all {
		ready, serving, terminating := !e.Terminating, true, e.Terminating
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.Addr.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.API.DiscoveryV1().EndpointSlices(filled.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
	return err
}

// start starts a proxy in mode nftables. Both have the same configuration, with the minSyncPeriod of kubeadm: the
// default.
func start(t lab.T, host *lab.Host, s *filled.Server, c contender) (*harness.Process, error) {
	kubeconfig, err := s.Kubeconfig("")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/run", "rollout-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %q}
hostnameOverride: %s
clusterCIDR: 10.0.0.0/8
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, kubeconfig, filled.NodeName)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args := []string{"--config=" + config}
	if c.flags != "" {
		args = append(args, c.flags)
	}
	return harness.Start(host, exec.Command(c.program, args...))
}
