package ipset

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func run(t *testing.T, netns int, argv ...string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
		return nil
	})
}

func TestSetsAreListedByNameAndDestroyed(t *testing.T) {
	netns := kerneltest.Namespace(t)
	sets := New(netns)
	if names, err := sets.Names(t.Context()); err != nil || names != nil {
		t.Fatalf("without sets: %v, %v", names, err)
	}
	run(t, netns, "ipset", "create", "KUBE-NODE-PORT-TCP", "bitmap:port", "range", "0-65535")
	run(t, netns, "ipset", "create", "KUBE-6-CLUSTER-IP", "hash:ip,port", "family", "inet6")
	run(t, netns, "ipset", "create", "foreign", "hash:ip")
	run(t, netns, "ipset", "add", "KUBE-6-CLUSTER-IP", "fd00::1,tcp:80")
	names, err := sets.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"KUBE-6-CLUSTER-IP", "KUBE-NODE-PORT-TCP", "foreign"}, names); diff != "" {
		t.Fatalf("names (-want +got):\n%s", diff)
	}
	for _, name := range append(names[:2], "KUBE-NODE-PORT-TCP") { // one of them a second time
		if err := sets.Destroy(t.Context(), name); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
	if names, err = sets.Names(t.Context()); err != nil || !cmp.Equal(names, []string{"foreign"}) {
		t.Errorf("after the deletions: %v, %v, want the foreign set", names, err)
	}
}

func TestASetInUseIsNotDestroyed(t *testing.T) {
	netns := kerneltest.Namespace(t)
	sets := New(netns)
	run(t, netns, "ipset", "create", "used", "hash:ip")
	run(t, netns, "iptables-nft", "-A", "INPUT", "-m", "set", "--match-set", "used", "src", "-j", "ACCEPT")
	err := sets.Destroy(t.Context(), "used")
	if err == nil || !strings.HasPrefix(err.Error(), "ipset destroy used: rules refer to it") {
		t.Errorf("got %v", err)
	}
	if names, err := sets.Names(t.Context()); err != nil || !cmp.Equal(names, []string{"used"}) {
		t.Errorf("afterwards: %v, %v", names, err)
	}
}

func TestNamesLoadsNoModule(t *testing.T) {
	netns := kerneltest.Namespace(t)
	run(t, netns, "ipset", "create", "there", "hash:ip")
	modules := t.TempDir() // a kernel without the module
	if names, err := (&Sets{netns, modules}).Names(t.Context()); err != nil || names != nil {
		t.Errorf("without the module: %v, %v", names, err)
	}
	if names, err := (&Sets{netns, modules + "/absent"}).Names(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("if the modules cannot be listed: %v, %v", names, err)
	}
}

func TestATruncatedReplyIsAnError(t *testing.T) {
	for _, b := range [][]byte{nil, {2}, {2, 0, 0, 0, 9, 0, 2}} {
		if name, err := setName(netlink.Message{Data: b}); err == nil && name != "" {
			t.Errorf("%v is read as %q", b, name)
		}
	}
}
