//go:build linux

package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestImages builds the images of the Dockerfile, and runs the program in them by all its names. They have the files
// of those that hack/image writes.
func TestImages(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	all, err := stages()
	if err != nil {
		t.Fatal(err)
	}
	packages, err := Packages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &script{images: map[string]image{}}
	for _, st := range all {
		s.buildStage(st)
	}
	for name, flags := range map[string][]string{"": nil, "iptables": {"-packages", packages}} {
		written, err := Files(t.Context(), t.TempDir(), "/bin/true", flags...)
		if err != nil {
			t.Fatal(err)
		}
		s.add(`list() { (cd "$1"; find . -printf '%%P %%y %%m %%U:%%G %%l\n'; `+
			`find . -type f ! -name sluice -exec sha256sum {} +) | sort; }
			diff <(list %s) <(list %s)`, written, s.images[name].root)
	}
	for _, name := range []string{"", "iptables"} {
		i := s.images[name]
		inside := "env -i " + strings.Join(i.env, " ") + ` "$(command -v chroot)" ` + i.root
		s.add("%s %s version", inside, i.entry)
		s.add("%s /usr/local/bin/kube-proxy --version", inside) // as kubeadm's DaemonSet names it
		s.add("%s kube-proxy --config=/nowhere 2>&1 | grep -m 1 -o 'open /nowhere' || true", inside)
	}
	out, err := s.run(t.Context(), t.TempDir(), packages)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, strings.Join(s.lines, "\n"), out)
	}
	outputs := fmt.Sprintf(`sluice v9.8.7 (%s, linux/%s)
Kubernetes v1.37.0+sluice-v9.8.7
open /nowhere
`, runtime.Version(), runtime.GOARCH)
	want := outputs + outputs
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// TestPrograms writes the image with the programs of iptables once, for both tests of it.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs of Debian")
	}
	packages, err := Packages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	root, err := Files(t.Context(), t.TempDir(), "/bin/true", "-packages", packages)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("run by themselves", func(t *testing.T) { testProgramsRunByThemselves(t, root) })
	t.Run("are listed as packages", func(t *testing.T) { testImageListsPackages(t, root) })
}

// rules has every kind of rule that mode iptables writes.
const rules = `*nat
:KUBE-SEP-A - [0:0]
-A PREROUTING -p sctp -m addrtype --dst-type LOCAL -m comment --comment "a comment" -j KUBE-SEP-A
-A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SEP-A -m recent --update --seconds 10800 --reap --name KUBE-SEP-A --mask ADDRESS --rsource -j RETURN
-A KUBE-SEP-A -m statistic --mode random --probability 0.50000000000 -j RETURN
-A KUBE-SEP-A -p udp -m udp -m recent --set --name KUBE-SEP-A --mask ADDRESS --rsource -j DNAT --to-destination TO
COMMIT
*filter
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -p tcp -m tcp --dport 30080 -j REJECT --reject-with UNREACHABLE
COMMIT
`

// The image for mode iptables has exactly the files of Debian that the iptables programs need:
// they restore and save the rules of this mode, in both variants and families.
func testProgramsRunByThemselves(t *testing.T, root string) {
	for family, words := range map[string]*strings.Replacer{
		"iptables": strings.NewReplacer("ADDRESS", "255.255.255.255", "TO", "10.1.0.1:80",
			"UNREACHABLE", "icmp-port-unreachable"),
		"ip6tables": strings.NewReplacer("ADDRESS", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "TO", "[fd00::1]:80",
			"UNREACHABLE", "icmp6-port-unreachable"),
	} {
		for _, variant := range []string{"nft", "legacy"} {
			program, want := "/usr/sbin/"+family+"-"+variant, words.Replace(rules)
			script := fmt.Sprintf(`inside() { env -i XTABLES_LOCKFILE=/lock "$(command -v chroot)" %s %s"$@"; }
				inside -restore; inside "" --version >&2; inside -save -t nat; inside -save -t filter`, root, program)
			cmd := exec.CommandContext(t.Context(), "unshare", "--net", "bash", "-euo", "pipefail", "-c", script)
			cmd.Stdin = strings.NewReader(want)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%s: %v\n%s%s", program, err, out, &stderr)
				continue
			}
			if diff := cmp.Diff(want, rulesOnly(string(out))); diff != "" {
				t.Errorf("%s-save differs (-restored +saved):\n%s", program, diff)
			}
			version := map[string]string{"nft": "(nf_tables)", "legacy": "(legacy)"}[variant]
			if !strings.Contains(stderr.String(), version) {
				t.Errorf("the version of %s is %s, want %s", program, &stderr, version)
			}
		}
	}
}

// rulesOnly removes comments and policies from the output of iptables-save.
func rulesOnly(saved string) string {
	return regexp.MustCompile(`(?m)^(#.*|:.* (ACCEPT|DROP) .*)\n`).ReplaceAllString(saved, "")
}

// The image lists its Debian packages and their licences, for scanners and lawyers.
func testImageListsPackages(t *testing.T, root string) {
	for _, name := range []string{"iptables", "libc6", "libnftnl11", "libxtables12"} {
		status, err := os.ReadFile(filepath.Join(root, "var/lib/dpkg/status.d", name))
		if err != nil || !strings.HasPrefix(string(status), "Package: "+name+"\n") {
			t.Errorf("status of %s: %v\n%s", name, err, status)
		}
		if _, err := os.Stat(filepath.Join(root, "usr/share/doc", name, "copyright")); err != nil {
			t.Error(err)
		}
	}
}

// The image is built with the Go version of go.mod.
func TestImageGoVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(projectPath(), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(mod))
	all, err := stages()
	if err != nil {
		t.Fatal(err)
	}
	if from := all[0].from; from != "golang:"+version[1] {
		t.Errorf("the image is built in %s, but go.mod has %s", from, version[1])
	}
}
