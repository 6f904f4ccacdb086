package iptables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// Options are where and how the programs are run.
type Options struct {
	NetNS int           // file descriptor of a network namespace; 0: the current one
	Lock  string        // file that the legacy variant locks; "": /run/xtables.lock
	Wait  time.Duration // how long to wait for the lock, in whole seconds; 0: 5 s, as kube-proxy
	Poll  time.Duration // period at which legacy tables are polled; 0: a second
	Path  string        // folders of the programs; "": $PATH, /usr/sbin and /sbin
}

const (
	defaultLock = "/run/xtables.lock"
	defaultWait = 5 * time.Second
	defaultPoll = time.Second
)

// Tools are the programs of one variant in one network namespace. They may be used by several goroutines.
type Tools struct {
	opts     Options
	kernel   *Kernel
	variant  Variant
	reason   string
	programs map[Family]programs
	legacy   atomic.Pointer[legacyWatch] // nil: no Watch of the legacy variant runs
	own      nft.Own
}

// programs are the paths of those of one family.
type programs struct{ save, restore string }

// Open finds the programs, and the variant that is in use. It leaves nothing running.
func Open(ctx context.Context, o Options) (*Tools, error) {
	o.fill()
	kernel, installed := NewKernel(o), o.installed()
	if len(installed) == 0 {
		return nil, fmt.Errorf("iptables 1.8 or newer is %w: "+
			"looked for iptables-nft-restore and iptables-legacy-restore in %s: "+
			"install the package iptables, or use the image whose tag ends in -iptables", ErrMissing, o.Path)
	}
	variant, reason, err := kernel.detect(ctx)
	if err != nil {
		return nil, fmt.Errorf("detect the variant of iptables in use: %w", err)
	}
	variant, reason = choose(variant, reason, installed)
	return &Tools{opts: o, kernel: kernel, variant: variant, reason: reason, programs: installed[variant]}, nil
}

func (o *Options) fill() {
	if o.Lock == "" {
		o.Lock = defaultLock
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	if o.Path == "" {
		o.Path = strings.Join([]string{os.Getenv("PATH"), "/usr/sbin", "/sbin"}, string(filepath.ListSeparator))
	}
}

// ErrMissing is the error of a program that is not installed.
var ErrMissing = errors.New("not installed")

// Variant returns which variant is used.
func (t *Tools) Variant() Variant { return t.variant }

// Reason returns why that variant is used: "KUBE-IPTABLES-HINT is in mangle of nft".
func (t *Tools) Reason() string { return t.reason }

// Has reports whether the programs of a family are installed.
func (t *Tools) Has(f Family) bool { return t.programs[f].restore != "" }

// roomNFT is how many lines of input one Restore should have at most. iptables-nft-restore looks up each chain in a
// list of all, so twice as much takes four times as long; and after each run the kernel walks all rules. With 10,000
// Services 3,000 to 4,000 lines were fastest.
const roomNFT = 4000

// Room returns how many lines of input one Restore should have at most. The
// legacy variant writes each table as a whole, so that one is better than two.
func (t *Tools) Room() int {
	if t.variant == NFT {
		return roomNFT
	}
	return math.MaxInt
}

// find returns the path of a program; empty if there is none.
func (o *Options) find(name string) string {
	for _, folder := range filepath.SplitList(o.Path) {
		path := filepath.Join(folder, name)
		info, err := os.Stat(path)
		if folder != "" && err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// installed finds the programs of all variants, by the names that all distributions use since both variants exist
// (iptables 1.8.0). A variant without programs for IPv4 counts as missing.
func (o *Options) installed() map[Variant]map[Family]programs {
	all := map[Variant]map[Family]programs{}
	for _, variant := range []Variant{NFT, Legacy} {
		found := map[Family]programs{}
		for _, f := range []Family{IPv4, IPv6} {
			name := f.Program() + "-" + string(variant)
			p := programs{save: o.find(name + "-save"), restore: o.find(name + "-restore")}
			if p.save != "" && p.restore != "" {
				found[f] = p
			}
		}
		if found[IPv4].restore != "" {
			all[variant] = found
		}
	}
	return all
}

func (o *Options) environment() []string {
	return []string{"LC_ALL=C", "PATH=" + o.Path, "XTABLES_LOCKFILE=" + o.Lock}
}
