"""Gymnasium's CarRacing with the same pictures in less time. Imports Box2D and pygame."""

import math

from gymnasium.envs.box2d import car_racing
from gymnasium.envs.box2d.car_racing import MAX_SHAPE_DIM, WINDOW_H, WINDOW_W

# Pixels from the car, which is at a quarter of the window's height, to a corner of a polygon that
# may be seen: to the window's farthest corner, and along the longest polygon.
SEEN = math.hypot(WINDOW_W / 2, WINDOW_H * 3 / 4) + MAX_SHAPE_DIM


class CarRacing(car_racing.CarRacing):
    """Gymnasium's CarRacing, which leaves out polygons that are far from the window.

    With `late`, reset and step return None in place of an observation, and `draw` returns that:
    most of a step is drawing, which a frame that nobody sees does not need.
    """

    late = False

    def draw(self):
        """The observation of the last reset or step, u8 [96 96 3]."""
        # A step draws the reward before it takes off the 0.1 of its frame.
        after, self.reward = self.reward, self.reward_drawn
        self.state, self.reward = super()._render("state_pixels"), after
        return self.state

    def _render(self, mode: str):
        if self.late and mode == "state_pixels":
            self.reward_drawn = self.reward
            return None
        return super()._render(mode)

    def _render_road(self, zoom, translation, angle):
        (x, y), far, every = self.car.hull.position, SEEN / zoom, self.road_poly
        self.is_near = lambda poly: abs(poly[0][0] - x) < far and abs(poly[0][1] - y) < far
        self.road_poly = [one for one in every if self.is_near(one[0])]
        super()._render_road(zoom, translation, angle)
        self.road_poly = every

    def _draw_colored_polygon(self, surface, poly, color, zoom, translation, angle, clip=True):
        if not clip or self.is_near(poly):
            super()._draw_colored_polygon(surface, poly, color, zoom, translation, angle, clip)
