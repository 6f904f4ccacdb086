//go:build linux

package image

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

type instruction struct{ name, rest string }

// stage is a stage of a Dockerfile, which begins with FROM.
type stage struct {
	from, name   string
	instructions []instruction
}

// stages parses the Dockerfile.
func stages() ([]stage, error) {
	text, err := os.ReadFile(filepath.Join(projectPath(), "Dockerfile"))
	if err != nil {
		return nil, fmt.Errorf("read the Dockerfile: %w", err)
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
	return out, nil
}

// projectPath returns the folder of this project, which the working folder of a test is in.
func projectPath() string {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic("the working folder is in no Go module")
}

// script are shell commands that build stages in a new mount namespace. $WORK is a working
// folder, $CONTEXT the build context.
type script struct {
	lines  []string
	dir    string // WORKDIR
	image         // of the current stage
	images map[string]image
}

// image is the result of a stage.
type image struct {
	root  string
	env   []string // of RUN instructions and of the image
	entry string
}

func (s *script) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// run runs the script in a working folder, with the Debian packages in a folder, and returns its output.
func (s *script) run(ctx context.Context, work, packages string) (string, error) {
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "bash", "-euo", "pipefail", "-c", strings.Join(s.lines, "\n"))
	cmd.Env = append(os.Environ(), "WORK="+work, "CONTEXT="+projectPath(), "PACKAGES="+packages)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *script) buildStage(st stage) {
	s.dir = "/"
	s.image = image{root: "$WORK/" + cmp.Or(st.name, "default")}
	s.add("mkdir -p %s", s.root)
	if st.from != "scratch" {
		s.mountHost("$WORK/written-" + st.name)
	}
	for _, i := range st.instructions {
		s.runInstruction(i)
	}
	s.images[st.name] = s.image
}

// mountHost mounts the file system of the test machine as root of the stage, with an overlay for changes.
func (s *script) mountHost(overlay string) {
	s.add("mkdir -p %[1]s && mount -t tmpfs none %[1]s && mkdir -p %[1]s/upper %[1]s/work", overlay)
	s.add("mount -t overlay -o lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work none %[2]s", overlay, s.root)
	s.add("mount --rbind /proc %[1]s/proc && mount --rbind /dev %[1]s/dev", s.root)
	s.add(`for dir in "$(go env GOCACHE)" "$(go env GOMODCACHE)"; do mkdir -p "$dir" && mount --bind "$dir" %s"$dir"; `+
		`done`, s.root)
	// So hack/image/debian.sh does not download the packages again.
	s.add("mkdir %[1]s/packages && mount --bind $PACKAGES %[1]s/packages", s.root)
}

func (s *script) runInstruction(i instruction) {
	switch i.name {
	case "WORKDIR":
		s.dir = i.rest
		s.add("mkdir -p %s%s", s.root, s.dir)
	case "ARG":
		name, value, _ := strings.Cut(i.rest, "=")
		if name == "TARGETARCH" {
			value = runtime.GOARCH // set by the builder
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
		s.add("echo %s >&2; exit 1", quote("instruction not supported: "+i.name+" "+i.rest))
	}
}

// copy runs COPY. Of a folder it copies the content.
func (s *script) copy(words []string) {
	from := "$CONTEXT"
	if name, is := strings.CutPrefix(words[0], "--from="); is {
		from, words = s.images[name].root, words[1:]
	}
	to := words[len(words)-1]
	for _, source := range words[:len(words)-1] {
		target := s.root + filepath.Join("/", s.dir, to)
		if filepath.IsAbs(to) {
			target = s.root + to
		}
		s.add("if [ -d %[1]s/%[2]s ]; then mkdir -p %[3]s && cp -a %[1]s/%[2]s/. %[3]s; else cp %[1]s/%[2]s %[3]s; fi",
			from, source, target)
	}
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
