//go:build linux

package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// instruction is one of a Dockerfile.
type instruction struct{ name, rest string }

// stage begins with FROM.
type stage struct {
	from, name   string
	instructions []instruction
}

// stages reads the Dockerfile.
func stages(t *testing.T) []stage {
	t.Helper()
	text, err := os.ReadFile("../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	whole := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(text), "")
	var out []stage
	for line := range strings.Lines(strings.ReplaceAll(whole, "\\\n", " ")) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "":
		case "FROM":
			words := strings.Fields(rest)
			words = slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "--") })
			out = append(out, stage{from: words[0]})
			if len(words) == 3 {
				out[len(out)-1].name = words[2]
			}
		default:
			last := &out[len(out)-1]
			last.instructions = append(last.instructions, instruction{name, strings.TrimSpace(rest)})
		}
	}
	return out
}

// script plays the stages as commands of a shell, which has a mount namespace of
// its own. $WORK is a folder for it, $CONTEXT the one that is built; what is built
// ends up in $WORK/tree.
type script struct {
	t     *testing.T
	lines []string
	env   []string // of RUN, and in the end of the image
	dir   string   // WORKDIR
	root  string   // of the stage
	roots map[string]string
	entry string
}

func (s *script) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *script) play(st stage) {
	s.dir, s.env, s.entry = "/", nil, ""
	s.root = "$WORK/tree"
	s.add("mkdir -p %s", s.root)
	if st.from != "scratch" {
		s.root = "$WORK/" + st.name
		// This machine, with what is written kept apart.
		s.add("mkdir -p $WORK/rw && mount -t tmpfs none $WORK/rw && mkdir -p $WORK/rw/upper $WORK/rw/work %s", s.root)
		s.add("mount -t overlay -o lowerdir=/,upperdir=$WORK/rw/upper,workdir=$WORK/rw/work none %s", s.root)
		s.add("mount --rbind /proc %[1]s/proc && mount --rbind /dev %[1]s/dev", s.root)
		s.add(`for dir in "$(go env GOCACHE)" "$(go env GOMODCACHE)"; do mkdir -p "$dir" && mount --bind "$dir" %s"$dir"; done`, s.root)
	}
	if st.name != "" {
		s.roots[st.name] = s.root
	}
	for _, i := range st.instructions {
		s.do(i)
	}
}

func (s *script) do(i instruction) {
	switch i.name {
	case "WORKDIR":
		s.dir = i.rest
		s.add("mkdir -p %s%s", s.root, s.dir)
	case "ARG":
		name, value, _ := strings.Cut(i.rest, "=")
		if name == "TARGETARCH" {
			value = runtime.GOARCH // the builder says it
		}
		if name == "VERSION" {
			value = "v9.8.7"
		}
		s.env = append(s.env, name+"="+value)
	case "ENV":
		s.env = append(s.env, i.rest)
	case "RUN":
		s.add("env %s chroot %s /bin/sh -c %s", strings.Join(s.env, " "), s.root, quote("cd "+s.dir+" && "+i.rest))
	case "COPY":
		s.copy(strings.Fields(i.rest))
	case "ENTRYPOINT":
		s.entry = strings.Trim(i.rest, `[]"`)
	case "LABEL", "USER":
	default:
		s.t.Fatalf("nothing here plays %s %s", i.name, i.rest)
	}
}

// copy is COPY: of a folder, what is in it.
func (s *script) copy(words []string) {
	from := "$CONTEXT"
	if name, is := strings.CutPrefix(words[0], "--from="); is {
		from, words = s.roots[name], words[1:]
	}
	to := words[len(words)-1]
	for _, source := range words[:len(words)-1] {
		target := s.root + filepath.Join("/", s.dir, to)
		if filepath.IsAbs(to) {
			target = s.root + to
		}
		s.add("if [ -d %[1]s/%[2]s ]; then mkdir -p %[3]s && cp -a %[1]s/%[2]s/. %[3]s; else cp %[1]s/%[2]s %[3]s; fi", from, source, target)
	}
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// TestImage builds the image and runs what is in it by all its names.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program anew")
	}
	s := &script{t: t, roots: map[string]string{}}
	for _, st := range stages(t) {
		s.play(st)
	}
	s.add("find $WORK/tree -mindepth 1 -printf '%%P %%l\\n' | sort")
	inside := "env -i " + strings.Join(s.env, " ") + " " + `"$(command -v chroot)" $WORK/tree `
	s.add("echo; %s %s version", inside, s.entry)
	s.add("%s /usr/local/bin/kube-proxy --version", inside) // as kubeadm's DaemonSet names it
	s.add("%s kube-proxy --config=/nowhere 2>&1 || true", inside)

	context, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "bash", "-euo", "pipefail", "-c", strings.Join(s.lines, "\n"))
	cmd.Env = append(os.Environ(), "WORK="+t.TempDir(), "CONTEXT="+context)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, strings.Join(s.lines, "\n"), out)
	}
	want := fmt.Sprintf(`usr 
usr/local 
usr/local/bin 
usr/local/bin/kube-proxy sluice
usr/local/bin/sluice 

sluice v9.8.7 (%s, linux/%s)
Kubernetes v9.8.7
`, runtime.Version(), runtime.GOARCH)
	if !strings.HasPrefix(string(out), want) || !strings.Contains(string(out)[len(want):], "/nowhere") {
		t.Errorf("got\n%s\nwant\n%s... and an error about /nowhere", out, want)
	}
}

// The image is built with the Go that everything else is.
func TestImageHasOurGo(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(mod))
	if from := stages(t)[0].from; from != "golang:"+version[1] {
		t.Errorf("the image is built in %s, and go.mod says %s", from, version[1])
	}
}
