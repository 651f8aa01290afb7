/* The control groups of this process, whose limits hold for all groups below them.
 *
 * /proc/self/cgroup has a line HIERARCHY:CONTROLLERS:PATH per hierarchy: "0::/a/b" is version 2,
 * "4:cpu,cpuacct:/a/b" version 1. /proc/self/mountinfo has the folder where a hierarchy is mounted, and the
 * group that is its root there: in a container the group's path may lie above that root, and the mounted root
 * is then the group itself. Without mountinfo the usual folders are taken, /sys/fs/cgroup and
 * /sys/fs/cgroup/CONTROLLER.
 */
#ifndef BASE_SYSTEM_CGROUP_H
#define BASE_SYSTEM_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

/* Receives the folder of one group, for cgroup_read(). */
typedef void CgroupVisit(void *user, const char *root, const char *folder);

/* Visits the process's group and all groups above it, in version 2 and in the hierarchy of the controller
 * ("cpu", "memory") of version 1. The paths of all files are relative to `root`: "" on a running system. */
void cgroup_visit(const char *root, const char *controller, CgroupVisit *visit, void *user);

/* Reads the first line of FOLDER/NAME, without its end. Returns false where it is missing or empty. */
bool cgroup_read(char *line, size_t room, const char *root, const char *folder, const char *name);

#endif
