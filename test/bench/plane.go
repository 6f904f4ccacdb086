//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	planeiptables "github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// mark is the mark of packets to masquerade.
const mark = 1 << 14

// planeKind is a plane to measure.
type planeKind struct {
	name string
	open func(dir string, families []route.Family) (plane.Plane, plane.Load, error)

	excess func(*route.Service) (size, limit string) // that of its Kind
}

func planes() []planeKind {
	return []planeKind{
		{"nftables", openNftables, nftables.Excess},
		{"iptables-nft", openIptables(iptables.NFT), planeiptables.Excess},
		{"iptables-legacy", openIptables(iptables.Legacy), planeiptables.Excess},
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

// openIptables creates the hint chain of kubelet in table mangle, which selects the variant.
func openIptables(v iptables.Variant) func(string, []route.Family) (plane.Plane, plane.Load, error) {
	return func(dir string, families []route.Family) (plane.Plane, plane.Load, error) {
		hint := exec.Command("iptables-"+string(v)+"-restore", "--noflush")
		hint.Stdin = strings.NewReader("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n")
		if out, err := hint.CombinedOutput(); err != nil {
			return nil, plane.Load{}, fmt.Errorf("%s: %w: %s", hint, err, out)
		}
		tools, err := iptables.Open(context.Background(), iptables.Options{Lock: filepath.Join(dir, "lock")})
		if err != nil {
			return nil, plane.Load{}, err
		}
		if tools.Variant() != v {
			return nil, plane.Load{}, fmt.Errorf("the variant is %s, want %s: %s", tools.Variant(), v, tools.Reason())
		}
		return planeiptables.New(tools, planeiptables.Options{Families: families, Mark: mark}), planeiptables.Load(tools.Room()), nil
	}
}
