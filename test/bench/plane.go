//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	planeiptables "github.com/sluice-proxy/sluice/internal/plane/iptables"
	planeipvs "github.com/sluice-proxy/sluice/internal/plane/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// mark is the mark of packets to masquerade.
const mark = 1 << 14

// ipvsPlane is the name of the plane that needs a kernel with IPVS.
const ipvsPlane = "ipvs"

// planeKind is a plane to measure.
type planeKind struct {
	name string
	open func(dir string, families []route.Family) (plane.Plane, plane.Load, error)

	excess func(*route.Service) (size, limit string) // of its Kind; nil if it has none

	// transient means that a restart writes the state of the process again.
	transient bool
}

func planes() []planeKind {
	return []planeKind{
		{name: "nftables", open: openNftables, excess: nftables.Excess},
		{name: "iptables-nft", open: openIptables(iptables.NFT), excess: planeiptables.Excess},
		{name: "iptables-legacy", open: openIptables(iptables.Legacy), excess: planeiptables.Excess},
		{name: ipvsPlane, open: openIPVS},
		{name: "userspace", open: openLoopback, transient: true},
		{name: "userspace-rules", open: openWithRules, excess: planeiptables.Excess, transient: true},
	}
}

func planeNames() []string {
	var out []string
	for _, p := range planes() {
		out = append(out, p.name)
	}
	return out
}

// openPlane opens a plane for the network namespace of this process. The folder is for its files.
func openPlane(name, dir string, families []route.Family) (plane.Plane, plane.Load, error) {
	return planeNamed(name).open(dir, families)
}

func planeNamed(name string) planeKind { return planes()[slices.Index(planeNames(), name)] }

func openNftables(_ string, families []route.Family) (plane.Plane, plane.Load, error) {
	conn, err := nft.Open(nft.Options{})
	if err != nil {
		return nil, plane.Load{}, err
	}
	return nftables.New(conn, nftables.Options{Families: families, Mark: mark}), nftables.Load(), nil
}

func openIptables(v iptables.Variant) func(string, []route.Family) (plane.Plane, plane.Load, error) {
	return func(dir string, families []route.Family) (plane.Plane, plane.Load, error) {
		tools, err := openTools(v, dir)
		if err != nil {
			return nil, plane.Load{}, err
		}
		return planeiptables.New(tools, planeiptables.Options{Families: families, Mark: mark}),
			planeiptables.Load(tools.Room()), nil
	}
}

func openIPVS(dir string, families []route.Family) (plane.Plane, plane.Load, error) {
	kernel, err := openIPVSKernel(dir)
	return planeipvs.New(kernel, planeipvs.Options{Families: families, Mark: mark}), planeipvs.Load(), err
}

func openIPVSKernel(dir string) (planeipvs.Kernel, error) {
	if err := ipvs.New(0).Load(context.Background()); err != nil {
		return planeipvs.Kernel{}, fmt.Errorf("%w; test/uml runs this program on a kernel that has it", err)
	}
	tools, err := openTools(iptables.NFT, dir)
	return planeipvs.KernelOf(0, tools), err
}

// openTools opens the programs of iptables. It creates the hint chain of kubelet in table mangle,
// which selects the variant.
func openTools(v iptables.Variant, dir string) (*iptables.Tools, error) {
	hint := exec.Command("iptables-"+string(v)+"-restore", "--noflush")
	hint.Stdin = strings.NewReader("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n")
	if out, err := hint.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", hint, err, out)
	}
	tools, err := iptables.Open(context.Background(), iptables.Options{Lock: filepath.Join(dir, "lock")})
	if err == nil && tools.Variant() != v {
		err = fmt.Errorf("the variant is %s, want %s: %s", tools.Variant(), v, tools.Reason())
	}
	return tools, err
}
