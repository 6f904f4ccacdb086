package exempt

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// search collects cgroups and the folders that it has read to find them.
type search struct {
	root    string
	id      func(dir string) (uint64, error)
	ids     map[uint64]bool
	folders map[string]bool
	pod     *regexp.Regexp // the name of the cgroup of a pod
}

func newSearch(root string, id func(dir string) (uint64, error)) *search {
	return &search{
		root: root, id: id, ids: map[uint64]bool{}, folders: map[string]bool{root: true},
		pod: regexp.MustCompile(`pod([0-9a-f_-]{32,36})(\.slice)?$`),
	}
}

// byPattern finds the cgroups whose path matches a pattern, element by element.
func (s *search) byPattern(pattern string) { s.match(s.root, strings.Split(pattern, "/")) }

func (s *search) match(dir string, pattern []string) {
	if len(pattern) == 0 {
		s.add(dir)
		return
	}
	for _, name := range s.children(dir) {
		if matches, _ := path.Match(pattern[0], name); matches { // patterns are well-formed
			s.match(filepath.Join(dir, name), pattern[1:])
		}
	}
}

// podDepth is the maximum number of cgroups above that of a pod. The paths depend on the driver of the kubelet:
//
//	kubepods/burstable/podUID
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice
//
// Guaranteed pods have no second element. With --cgroup-root of the kubelet there is one more element at the front.
const podDepth = 3

// byPod finds the cgroups of pods, by UIDs without separators.
func (s *search) byPod(pods map[string]bool) { s.descend(s.root, podDepth, pods) }

func (s *search) descend(dir string, levels int, pods map[string]bool) {
	for _, name := range s.children(dir) {
		switch uid := s.podUID(name); {
		case pods[uid]:
			s.add(filepath.Join(dir, name))
		case uid == "" && levels > 0 && leadsToPods(name):
			s.descend(filepath.Join(dir, name), levels-1, pods)
		}
	}
}

func leadsToPods(name string) bool {
	return strings.Contains(name, "kube") || name == "burstable" || name == "besteffort"
}

// podUID returns the UID in the name of the cgroup of a pod, without separators; "" if the cgroup is not that of a pod.
func (s *search) podUID(name string) string {
	uid := s.pod.FindStringSubmatch(name)
	if uid == nil {
		return ""
	}
	return withoutSeparators(uid[1])
}

// withoutSeparators removes "-" and "_" from a UID: names of cgroups of systemd have "_" in place of "-".
func withoutSeparators(uid string) string { return strings.NewReplacer("-", "", "_", "").Replace(uid) }

// children lists the subfolders of a folder; none if the folder is gone.
func (s *search) children(dir string) []string {
	s.folders[dir] = true
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// add adds the cgroup of a folder, unless it is gone.
func (s *search) add(dir string) {
	if id, err := s.id(dir); err == nil {
		s.ids[id] = true
	}
}
